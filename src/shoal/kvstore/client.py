"""Client: one worker's side of the parameter servers, for parameters that lie in one flat tensor."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from shoal.base.errors import ShoalError
from shoal.kvstore.layout import Committed, Layout, Limits, Terms


class ServerError(ShoalError):
    """A server refused or gave up; the text says who waits for whom."""


class RolledBack(ServerError):
    """sync: a server came back from an older state than its workers have. All workers get it in the same round: they
    load the same checkpoint with `load` and go on from there."""


class Client:
    """A conversation with all servers, from one thread (`push` from any). Tensors are on the CPU.

    A step in sync mode:

        flat = client.init(flat, layout, describe(optimizer), Terms())
        loss.backward()                          # into views of client.gradient
        client.push(0, client.gradient)          # whole, or piece by piece as backward makes them
        end = client.commit(step, lr=lr, finite=True)
        client.pull(flat)

    Every wait has a limit and ends in ServerError. A server that goes away is waited for (limits.return_s); async: what
    it had not yet applied is pushed again, and a log line tells how many pushes its snapshot did not know.
    """

    gradient: Tensor
    """[size] after `init`: where the servers find pushed values at least cost, in shared memory on one host. It is used
    up by a commit: afterwards its values are anything."""
    bytes_sent: int = 0
    """Over the network or into shared memory, so far."""

    def __init__(
        self,
        addresses: Sequence[str],
        rank: int,
        num_ranks: int,
        secret: bytes,
        *,
        limits: Limits = Limits(),  # noqa: B008  (frozen)
        shared_memory: bool = True,
        certificate: Path | None = None,
    ) -> None:
        """addresses: host:port of each server, the same order on every worker. secret: the job's (launch.handshake).

        shared_memory: used where a server runs on this host. certificate: PEM file with the job's certificate and key,
        for TLS 1.3; needed when a server is on another host, unless the servers were told that they need none.
        """
        raise NotImplementedError

    def init(self, flat: Tensor, layout: Layout, optimizer: dict[str, Any], terms: Terms) -> int:
        """Makes the parameters known: rank 0's values win and stand in everybody's `flat` afterwards. A barrier.

        optimizer: see `kvstore.updater.describe`. Returns the version: 0, or that of the servers' snapshot.
        """
        raise NotImplementedError

    def push(self, start: int, values: Tensor, node: tuple[int, int] | None = None) -> None:
        """Gradient [start, start + len(values)) of the flat tensor, as backward makes it; returns at once. Pieces of a
        step do not overlap; what is not pushed counts as zero. `values` must not change until `commit` returns; they
        cost least as views of `gradient` at the same place.

        node: with terms.shards, the node of the tree of additions (base.tree) that this is the partial sum of.
        """
        raise NotImplementedError

    def commit(
        self, step: int, *, lr: float, finite: bool = True, ask: int = 0, clip_norm: float | None = None
    ) -> Committed:
        """Ends the step. sync: waits for all workers; all agree on applied or dropped (one `finite` is False, or the
        sum is not), on the norm over all servers for clipping, on the largest ask. async: applied whole and at once.

        lr: times a group's `lr_scale`, if it has one. Step numbers rise; one that is to be done again (`redo`)
        comes again. A worker without images commits without a push.
        """
        raise NotImplementedError

    def pull(self, into: Tensor) -> int:
        """The parameters into a flat tensor; returns their version. async: what each server held at one moment."""
        raise NotImplementedError

    def summed(self, into: Tensor) -> None:
        """sync: the summed gradient of the last commit, before clipping, into a flat tensor (for a NaN's riddle)."""
        raise NotImplementedError

    def side(self, values: Tensor) -> Tensor:
        """Sum of float64 or int64 `values` (equal shapes everywhere) over live workers in rank order: equal bits for
        all. For meters, buffers, asks: small things. Waits for all workers, in async mode too."""
        raise NotImplementedError

    def barrier(self) -> None:
        """Waits until every live worker is here."""
        raise NotImplementedError

    def state(self) -> dict[str, Any]:
        """The optimizer's state_dict as torch's own would be in one process: `state` by number of the parameter in the
        layout's shapes, `param_groups`. Any one worker may ask; others must not commit meanwhile (sync)."""
        raise NotImplementedError

    def load(self, flat: Tensor, state: dict[str, Any] | None) -> None:
        """Sets parameters and the optimizer's state (None: as new), rank 0's everywhere. A barrier. Ends a rollback."""
        raise NotImplementedError

    def num_dead(self) -> int:
        """Workers that were there and went away without a goodbye."""
        raise NotImplementedError

    def close(self) -> None:
        """Goodbye: rounds no longer wait for this worker, and the servers end with the last one."""
        raise NotImplementedError
