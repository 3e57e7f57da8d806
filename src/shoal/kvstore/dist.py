"""Dist: a KVStore whose values lie on servers: dist_sync, dist_device_sync, dist_async."""

from __future__ import annotations

import atexit
import json
import os
import sys
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from shoal.base.errors import UsageError
from shoal.base.world import World
from shoal.kvstore import Key, KVStore, shm
from shoal.kvstore.compress import Codec, codec
from shoal.kvstore.layout import Layout, Limits, Terms
from shoal.kvstore.link import Link
from shoal.kvstore.links import Links
from shoal.kvstore.server import to_stderr
from shoal.kvstore.shm import Shared
from shoal.kvstore.table import Plan
from shoal.kvstore.talk import Commit
from shoal.kvstore.tls import Cover
from shoal.kvstore.updater import named
from shoal.kvstore.wire import Flag, Header, Op
from shoal.launch.handshake import read_secret
from shoal.launch.worlds import SERVERS

_COMMIT = Commit(None, None, True, 0, 0, 0)
_SHARED_FROM = 1 << 16
"""Bytes of a value from which shared memory is worth two descriptors."""


class _Held:
    """What a worker knows of one key."""

    def __init__(self, number: int, plan: Plan, parts: list[tuple[Link, int, int]], codec: Codec) -> None:
        self.number, self.plan, self.parts, self.codec = number, plan, parts, codec
        """parts: (server, low, high) of the flat value."""
        self.pushes = 0
        self.memory: Shared | None = None
        self.gradient: torch.Tensor | None = None
        self.settled = True
        """Nothing that was pushed is still to be read by a server."""


class Dist(KVStore):
    """Values of MXNET_KVSTORE_BIGARRAY_BOUND (1,000,000) numbers or more are cut evenly over all servers, smaller ones
    lie whole on one of them. float32 or float64.

    Every worker initialises the same keys in the same order. A worker that ends by an error, or is killed, is the end
    of dist_sync for all; in dist_async the others go on.
    """

    def __init__(
        self,
        type: str,
        *,
        servers: Sequence[str] | None = None,
        rank: int | None = None,
        num_workers: int | None = None,
        secret: bytes | None = None,
        limits: Limits = Limits(),  # noqa: B008  (frozen)
        shared_memory: bool = True,
        env: Mapping[str, str] = os.environ,
    ) -> None:
        """Absent: servers from SHOAL_SERVERS (host:port,host:port), rank and num_workers from the launcher's variables
        (Shoal's, torchrun's, MPI's, Slurm's, Paddle's), secret from the file that SHOAL_SECRET_FILE names."""
        super().__init__(type)
        if servers is None:
            servers = [address for address in env.get(SERVERS, "").split(",") if address]
        if not servers:
            raise UsageError(
                f"{type}: no servers; set {SERVERS}=HOST:PORT,… where `shoal server --listen HOST:PORT` runs"
            )
        if rank is None or num_workers is None:
            world = World.from_env(env)
            rank, num_workers = (world.rank, world.num_ranks) if world else (0, 1)
        self.rank, self.num_workers = rank, num_workers
        secret = read_secret(env=env) if secret is None else secret
        self._bound = int(env.get("MXNET_KVSTORE_BIGARRAY_BOUND", "1000000"))
        self._shared_memory = shared_memory and shm.available()
        self._held: dict[Key, _Held] = {}
        self._compression: dict[str, Any] = {}
        self._mode = "async" if type == "dist_async" else "sync"
        self._described: dict[str, Any] | None = None
        self._links = Links(servers, rank, num_workers, secret, limits, Cover.from_env(env), to_stderr)
        for link in self._links:
            link.asynchronous = self._mode == "async"
        this = weakref.ref(self)
        atexit.register(lambda: (store := this()) and store._leave())

    def _leave(self) -> None:
        # A program that ends by an error says no goodbye: the others must not take it for one that is done.
        if not hasattr(sys, "last_value"):
            self.close()

    # Values ---------------------------------------------------------------------------------------------------------

    def _init(self, key: Key, value: torch.Tensor) -> None:
        number, size = len(self._held), value.numel()
        layout = Layout.of([(str(key), value.cpu().contiguous())])
        terms = Terms(mode=self._mode, compression=self._compression)  # type: ignore[arg-type]
        if self._compression and layout.dtype != "float32":
            raise UsageError(f"key {key!r} is {layout.dtype}: gradients are compressed as float32 only")
        if size >= self._bound:
            places = list(zip(self._links, layout.cut(len(self._links)), strict=True))
        else:
            places = [(self._links[number % len(self._links)], (0, size))]
        parts = [(link, low, high) for link, (low, high) in places]
        flat = value.detach().cpu().contiguous().view(-1)
        plans = [Plan(layout=layout, low=low, high=high, optimizer=None, terms=terms) for _, low, high in parts]
        self._links.wait(
            [
                link.submit(link.make, number, plan, flat[low:high], None)
                for (link, low, high), plan in zip(parts, plans, strict=True)
            ]
        )
        held = self._held[key] = _Held(number, plans[0], parts, codec(self._compression))
        nbytes = size * layout.kind.itemsize
        near = [link.here and self._shared_memory and not self._compression for link, _, _ in parts]
        if nbytes >= _SHARED_FROM and all(near):
            memory = held.memory = Shared.make(self._links.session, nbytes)
            offers = zip(parts, plans, strict=True)
            took = [link.submit(link.share, number, memory, nbytes, plan) for (link, _, _), plan in offers]
            if all(self._links.wait(took)):
                held.gradient = memory.tensor(layout.kind)

    def _push(self, key: Key, values: list[torch.Tensor]) -> None:
        held = self._held[key]
        total = values[0].detach()
        if len(values) > 1:
            device = total.device if self.type == "dist_device_sync" else torch.device("cpu")
            total = total.to(device, copy=True)
            for value in values[1:]:
                total += value.detach().to(device)
        if held.gradient is not None:
            if not held.settled:
                self._settle(held)
            held.gradient.copy_(total.reshape(-1))
            flat, held.settled = held.gradient, False
        else:  # this returns at once, and the caller may go on with what it pushed
            flat = total.cpu().reshape(-1)
            flat = flat.clone() if len(values) == 1 else flat
        for link, low, high in held.parts:
            header = Header(Op.PUSH, table=held.number, count=high - low)
            if held.gradient is not None:
                link.submit(link.push, header._replace(flags=Flag.SHARED), None)
            else:
                encoded = held.codec.encode(low, flat[low:high]).contiguous()
                link.submit(link.push, header._replace(codec=held.codec.number), encoded)
            link.submit(link.commit_quietly, held.number, held.pushes, _COMMIT)
        held.pushes += 1

    def _settle(self, held: _Held) -> None:
        """An empty pull is answered when the push before it was used."""
        nothing = torch.zeros(0, dtype=held.plan.layout.kind)
        self._links.wait([link.submit(link.pull, held.number, 0, nothing, None) for link, _, _ in held.parts])
        held.settled = True

    def _pull(self, key: Key) -> torch.Tensor:
        held = self._held[key]
        flat = torch.empty(held.plan.layout.size, dtype=held.plan.layout.kind)
        spare = held.gradient
        self._links.wait(
            [
                link.submit(link.pull, held.number, 0, flat[low:high], None if spare is None else spare[low:high])
                for link, low, high in held.parts
            ]
        )
        held.settled = True
        return flat.view(held.plan.layout.shapes[0])

    # Optimizers -----------------------------------------------------------------------------------------------------

    def set_optimizer(self, optimizer: str | type, *, rescale_grad: float = 1.0, **options: Any) -> None:
        """As in MXNet every worker may call it; worker 0's counts, from its next push on."""
        name = optimizer if isinstance(optimizer, str) else optimizer.__name__
        self._described = named(name, options)
        self._tell_servers({"optimizer": self._described, "rescale": rescale_grad})

    def set_learning_rate(self, lr: float) -> None:
        if self._described is None:
            raise UsageError("set_learning_rate: no optimizer was set")
        self._tell_servers({"lr": lr})

    def _tell_servers(self, told: dict[str, Any]) -> None:
        if self.rank == 0:
            payload = json.dumps(told).encode()
            self._links.wait(
                [link.submit(lambda link=link: link.small(Op.OPTIMIZER, payload=payload)) for link in self._links]
            )

    def set_gradient_compression(self, compression: dict[str, Any]) -> None:
        if self._held:
            raise UsageError("set_gradient_compression: call it before init")
        codec(compression)
        self._compression = {} if compression.get("type", "none") == "none" else dict(compression)

    def save_optimizer_states(self, path: str | Path) -> None:
        if self._described is None:
            raise UsageError("save_optimizer_states: no optimizer was set")
        found: dict[str, torch.Tensor] = {}
        for held in self._held.values():
            for state in self._links.wait([link.submit(link.state, held.number) for link, _, _ in held.parts]):
                found |= {f"{held.number}/{name}": value for name, value in state.items()}
        save_file(found, str(path))

    def load_optimizer_states(self, path: str | Path) -> None:
        if self._described is None:
            raise UsageError("load_optimizer_states: no optimizer was set; call set_optimizer first")
        found = load_file(str(path))
        for held in self._held.values():
            prefix = f"{held.number}/"
            state = {name.removeprefix(prefix): value for name, value in found.items() if name.startswith(prefix)}
            self._links.wait([link.submit(link.load, held.number, state) for link, _, _ in held.parts])

    # The rest -------------------------------------------------------------------------------------------------------

    def barrier(self) -> None:
        self._links.barrier()

    def num_dead_node(self) -> int:
        return self._links.num_dead()

    def close(self) -> None:
        self._links.close()
        for held in self._held.values():
            if held.memory is not None:
                held.memory.close()
