"""Client: one worker's side of the parameter servers, for parameters that lie in one flat tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from shoal.base.errors import UsageError
from shoal.kvstore import shm
from shoal.kvstore.compress import codec
from shoal.kvstore.layout import Committed, Layout, Limits, Terms
from shoal.kvstore.link import Link, RolledBack, ServerError
from shoal.kvstore.links import Links
from shoal.kvstore.server import to_stderr
from shoal.kvstore.shm import Shared
from shoal.kvstore.table import Plan, added, clip
from shoal.kvstore.talk import APPLIED, DROPPED, REDO, Apply, Commit, Result
from shoal.kvstore.tls import Cover
from shoal.kvstore.updater import elementwise, from_torch, to_torch
from shoal.kvstore.wire import SMALL, Flag, Header, Op

__all__ = ["Client", "RolledBack", "ServerError"]


class Client:
    """A conversation with all servers, from one thread (`push` from any). Tensors are on the CPU.

    A step in sync mode:

        client.init(flat, layout, describe(optimizer, parameters), Terms())
        loss.backward()                          # into views of client.gradient
        client.push(0, client.gradient)          # whole, or piece by piece as backward makes them
        end = client.commit(step, lr=lr, finite=True)
        client.pull(flat)

    Every wait has a limit and ends in ServerError. A server that goes away is waited for (limits.return_s); async: what
    it had not yet applied is pushed again, and a log line tells how many pushes its snapshot did not know.
    """

    gradient: Tensor
    """[size] after `init`: where the servers find pushed values at least cost, in shared memory on one host. A commit
    uses it up: afterwards, and after a pull, its values are anything."""

    def __init__(
        self,
        addresses: Sequence[str],
        rank: int,
        num_ranks: int,
        secret: bytes,
        *,
        limits: Limits = Limits(),  # noqa: B008  (frozen)
        shared_memory: bool = True,
        cover: Cover | None = None,
        tell: Callable[[str], None] = to_stderr,
    ) -> None:
        """addresses: host:port of each server, the same order on every worker. secret: the job's (launch.handshake).

        shared_memory: used where a server runs on this host. cover: of connections to other hosts (TLS 1.3, unless it
        says plain); absent: as the environment says. Waits for servers that do not listen yet.
        """
        cover = Cover.from_env() if cover is None else cover
        self._shared_memory = shared_memory
        self._memory: Shared | None = None
        self._taken: list[int] = []
        """Positions that this worker has not finished."""
        self._links = Links(addresses, rank, num_ranks, secret, limits, cover, tell)

    @property
    def bytes_sent(self) -> int:
        """Over the network or into shared memory, so far."""
        return self._links.bytes_sent + self._shared_bytes

    _shared_bytes = 0

    def init(self, flat: Tensor, layout: Layout, optimizer: dict[str, Any], terms: Terms) -> int:
        """Makes the parameters known: rank 0's values win and stand in everybody's `flat` afterwards. A barrier.

        optimizer: see `kvstore.updater.describe`. Returns the version: 0, or that of the servers' snapshot.
        """
        self._codec = codec(terms.compression)
        if self._codec.number and (terms.shards is not None or layout.dtype != "float32"):
            raise UsageError("gradient compression is for float32, and has no place in deterministic training")
        if not elementwise(optimizer) and not layout.whole:
            raise UsageError(f"optimizer {optimizer['name']} needs a layout of whole tensors")
        self._layout, self._optimizer, self._terms = layout, optimizer, terms
        self._size, self._cut = layout.size, layout.cut(len(self._links))
        self._plans = [
            Plan(layout=layout, low=low, high=high, optimizer=optimizer, terms=terms) for low, high in self._cut
        ]
        for link in self._links:
            link.asynchronous = terms.mode == "async"
        return self._make(flat, None)

    def _make(self, flat: Tensor, states: list[dict[str, Tensor]] | None) -> int:
        self._checked(0, flat)
        versions = self._links.each(
            lambda link, number: link.make(
                0, self._plans[number], flat[slice(*self._cut[number])], states[number] if states else None
            )
        )
        self._share_memory()
        self.pull(flat)
        return min(versions)

    def _share_memory(self) -> None:
        nbytes = self._size * self._layout.kind.itemsize
        near = [
            link.here and self._shared_memory and shm.available() and not self._codec.number for link in self._links
        ]
        if any(near) and self._memory is None:
            self._memory = Shared.make(self._links.session, nbytes)
            self.gradient = self._memory.tensor(self._layout.kind)
        elif self._memory is None:
            self.gradient = torch.zeros(self._size, dtype=self._layout.kind)
        memory = self._memory
        if memory is not None:
            self._links.each(
                lambda link, number: near[number] and link.share(0, memory, nbytes, self._plans[number]),
            )

    def push(
        self,
        start: int,
        values: Tensor,
        node: tuple[int, int] | None = None,
        *,
        ready: Callable[[], Any] | None = None,
    ) -> None:
        """Gradient [start, start + len(values)) of the flat tensor, as backward makes it; returns at once. Pieces of a
        step do not overlap; what is not pushed counts as zero. `values` must not change until `commit` returns; they
        cost least as views of `gradient` at the same place.

        node: with terms.shards, the node of the tree of additions (base.tree) that this is the partial sum of.
        ready: returns when `values` have arrived from a device; called on another thread.
        """
        self._checked(start, values)
        values = values.detach()
        for link, (low, high) in zip(self._links, self._cut, strict=True):
            begin, end = max(start, low), min(start + len(values), high)
            if begin >= end:
                continue
            piece = values[begin - start : end - start]
            header = Header(Op.PUSH, start=begin - low, count=end - begin)
            if node is not None:
                header = header._replace(flags=Flag.NODE, step=node[0] << 32 | node[1])
            work = partial(self._hand_over, link, header, begin, piece, ready)
            link.soon(work, here=ready is None and node is None and 0 in link.shared)

    def _hand_over(
        self, link: Link, header: Header, begin: int, piece: Tensor, ready: Callable[[], Any] | None
    ) -> None:
        if ready is not None:
            ready()
        if Flag.NODE in header.flags:
            link.push(header, piece.contiguous())
        elif 0 in link.shared:
            place = self.gradient[begin : begin + len(piece)]
            if place.data_ptr() != piece.data_ptr():
                shm.copy(place, piece)
            self._shared_bytes += piece.numel() * piece.element_size()
            link.push(header._replace(flags=Flag.SHARED), None)
        else:
            encoded = self._codec.encode(begin, piece).contiguous()
            link.push(header._replace(codec=self._codec.number), encoded)

    def commit(
        self, step: int, *, lr: float, finite: bool = True, ask: int = 0, clip_norm: float | None = None
    ) -> Committed:
        """Ends the step. sync: waits for all workers; all agree on applied or dropped (one `finite` is False, or the
        sum is not), on the norm over all servers for clipping, on the largest ask. async: applied whole and at once.

        lr: times a group's `lr_scale`, if it has one. Step numbers rise; one that is to be done again (`redo`)
        comes again. A worker without images commits without a push.

        Norm of the whole gradient: of layouts that are `whole` the squares add up in float64, tensor by tensor in their
        order; the gradient is multiplied by min(1, clip_norm / (norm + 1e-6)) in its own precision.
        """
        several = len(self._links) > 1
        position = self._taken[0] if self._taken else None
        commits = [
            Commit(lr, clip_norm, finite, ask, link.generation, link.version, None if link.number else position)
            for link in self._links
        ]
        flags = Flag.PREPARE if several else Flag.NONE
        results = self._links.each(
            lambda link, number: link.commit(0, step, commits[number], flags, self._squares(number) if several else 0)
        )
        asked = max(result.asked for result in results)
        for link, result in zip(self._links, results, strict=True):
            link.generation = result.generation
        live = tuple(sorted(set.intersection(*(set(result.live) for result in results))))
        status, norm, version = results[0].status, results[0].norm, results[0].version
        staleness = results[0].staleness
        if several:
            status, norm, version, staleness = self._finish(step, commits, results, lr, clip_norm)
        if status != REDO:
            del self._taken[:1]
        if live:
            self.live = live
        return Committed(status == APPLIED, status == REDO, asked, norm, version, staleness, live)

    def _finish(
        self, step: int, commits: list[Commit], results: list[Result], lr: float, clip_norm: float | None
    ) -> tuple[int, float, int, int]:
        """What the servers know apart becomes one decision, the same on every worker."""
        total = added(square for result in results for square in result.squares)
        norm, scale = clip(total, clip_norm, self._layout.kind)
        if any(result.status == REDO for result in results):
            status = REDO
        elif any(result.status == DROPPED for result in results) or not norm < float("inf"):
            status = DROPPED
        else:
            status = APPLIED
        apply = Apply(status, lr, scale)
        ends = self._links.each(lambda link, number: link.apply(0, step, commits[number], apply, self._squares(number)))
        return status, norm, min(version for version, _ in ends), max(staleness for _, staleness in ends)

    def _squares(self, number: int) -> int:
        low, high = self._cut[number]
        if not self._layout.whole:
            return 1
        sizes, starts = self._layout.sizes, self._layout.starts
        return sum(low <= start < high and size > 0 for start, size in zip(starts, sizes, strict=True))

    def pull(self, into: Tensor) -> int:
        """The parameters into a flat tensor; returns their version. async: what each server held at one moment."""
        self._checked(0, into)
        into = into.detach()

        def work(link: Link, number: int) -> int:
            place = slice(*self._cut[number])
            if 0 in link.shared and not link.asynchronous:
                return link.read(0, into[place])
            return link.pull(0, 0, into[place], self.gradient[place] if 0 in link.shared else None)

        return min(self._links.each(work))

    def side(self, values: Tensor) -> Tensor:
        """Sum of float64 or int64 `values` (equal shapes everywhere) over live workers in rank order: equal bits for
        all. For meters, buffers, asks: small things. Waits for all workers, in async mode too."""
        if values.dtype not in (torch.float64, torch.int64):
            raise ValueError(f"side sums are float64 or int64, not {values.dtype}")
        summed = values.detach().clone(memory_format=torch.contiguous_format)
        for piece in summed.view(-1).split(SMALL // 8):
            self._links.first(lambda link, piece=piece: link.side(piece))
        return summed

    def barrier(self) -> None:
        """Waits until every live worker is here."""
        self._links.barrier()

    def take(self, limit: int) -> int:
        """async: the next position below `limit` that nobody works on, or -1. This worker's next commit finishes the
        first it took, and is dropped should somebody else have done it meanwhile (only a restart of the server can
        bring that about); that of a worker that dies before is handed out again, first."""
        held = len(self._taken)
        answer = self._links.first(lambda link: link.small(Op.TAKE, start=held, count=limit, numbered=True))
        if answer.count:
            self._taken.append(answer.count - 1)
        return answer.count - 1

    def seek(self, position: int) -> None:
        """The next position to be taken; what is taken now is forgotten. One worker calls it."""
        self._taken.clear()
        self._links.first(lambda link: link.small(Op.SEEK, count=position))

    def state(self) -> dict[str, Any]:
        """The optimizer's state_dict as torch's own would be in one process. Any one worker may ask; in sync mode
        nobody commits meanwhile."""
        pieces: dict[str, Tensor] = {}
        for found in self._links.each(lambda link, number: link.state(0)):
            pieces |= found
        return to_torch(pieces, self._optimizer, self._layout)

    def load(self, flat: Tensor, state: dict[str, Any] | None) -> None:
        """Sets parameters and the optimizer's state (None: as new), rank 0's everywhere. A barrier. Ends a rollback."""
        whole = from_torch(state, self._optimizer, self._layout) if state is not None else {}
        self._make(flat, [_part(whole, self._layout, low, high) for low, high in self._cut])

    @property
    def live(self) -> Sequence[int]:
        """Workers who were there when this one heard of it last: of the others a server that is started again knows
        nothing, and is told."""
        return self._links.live

    @live.setter
    def live(self, ranks: Sequence[int]) -> None:
        self._links.live = ranks

    def num_dead(self) -> int:
        """Workers that were there and went away without a goodbye."""
        return self._links.num_dead()

    def close(self) -> None:
        """Goodbye: rounds no longer wait for this worker, and the servers end with the last one."""
        self._links.close()
        if self._memory is not None:
            self._memory.close()

    # Inside ---------------------------------------------------------------------------------------------------------

    def _checked(self, start: int, values: Tensor) -> None:
        if values.ndim != 1 or values.dtype != self._layout.kind or values.device.type != "cpu":
            raise ValueError(f"a flat {self._layout.dtype} tensor on the CPU is wanted")
        if not values.is_contiguous() or not 0 <= start <= start + len(values) <= self._size:
            raise ValueError(f"values {start} to {start + len(values)} of {self._size}")


def _part(state: dict[str, Tensor], layout: Layout, low: int, high: int) -> dict[str, Tensor]:
    """What a server needs of an optimizer's state."""
    found: dict[str, Tensor] = {}
    starts, sizes = layout.starts, layout.sizes
    for name, value in state.items():
        number, *rest = name.split(".")
        if number == "group":
            found[name] = value
            continue
        begin = starts[int(number)]
        if len(rest) == 1:
            if begin < high and begin + sizes[int(number)] > low:
                found[name] = value
            continue
        first, last = max(low - begin, 0), min(high - begin, sizes[int(number)])
        if first < last:
            found[f"{number}.{rest[0]}.{first}"] = value[first:last]
    return found
