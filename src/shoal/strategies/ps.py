from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import Meta

from shoal.base.errors import UsageError
from shoal.strategies import MakeOptimizer, Rig, RigSpec, Strategy

if TYPE_CHECKING:
    import torch

    from shoal.base.world import World
    from shoal.launch.job import Role
    from shoal.step.gang import Gang
    from shoal.step.precision import Precision
    from shoal.step.task import Task


class Ps(Strategy, frozen=True, kw_only=True):
    """Workers push gradients to parameter servers, which hold the optimizer, and pull the weights back: MXNet's
    dist_sync and dist_device_sync (mode: sync) and dist_async (mode: async)."""

    name: Literal["ps"] = "ps"
    mode: Literal["sync", "async"] = "sync"
    """sync: a round per step, and the same training as every other strategy's. async: each worker takes the next shard
    and pushes its gradient when it is done, waiting for nobody; every image counts once, SGD's momentum looks ahead,
    and the training depends on who was when how fast (cifar10-proof with 4 workers: 0.1 points less, 95 % interval -0.7
    to +0.5, n = 5)."""
    on_dead: Literal["stop", "continue"] = "stop"
    """sync: what a dead worker means. stop: the end, with its name and step; continue: the rest compute the same batch
    again without it, and train the same model (on several hosts the first, which keeps the run folder, cannot be
    spared)."""
    damping: bool = True
    """async: the rate of a push is divided by the whole batches that came between (others' pushes plus one, over the
    shards of a batch), where they are more than one: Zhang, Gupta, Lian, Liu 2016, Staleness-aware async-SGD. It holds
    back who is much slower than the others."""
    compress: Literal["none", "fp16", "2bit"] = "none"
    """Of what is pushed, for slow networks: a half or a sixteenth of the bytes. It trains another model. 2bit: each
    number becomes threshold, -threshold or 0, and what is left out is added to the next push (not to checkpoints); as
    MXNet defines it. What it loses was measured with ddp alone (see there)."""
    threshold: Annotated[float, Meta(gt=0)] = 0.5
    """Of compress: 2bit, in the gradient of the sum over a batch's images, as MXNet counts it."""

    @property
    def same_model(self) -> bool:
        return self.mode == "sync" and self.compress == "none"

    def faults(self) -> list[tuple[str, str]]:
        wrong = []
        if self.mode == "async" and self.deterministic:
            told = "mode: async adds gradients as they come; it cannot give the same bits again"
            wrong.append(("deterministic", told))
        if self.compress != "none" and self.deterministic:
            told = f"{self.compress} rounds each worker's gradient, which depends on how many workers there are"
            wrong.append(("compress", f"{told}; deterministic needs compress: none"))
        return wrong

    def misfits(self, recipe: Any) -> list[tuple[str, str]]:
        if recipe.precision.name == "O3":
            return [("precision", "O3 keeps no float32 weights, and servers hold no others; use O2")]
        return []

    def _compression(self, batch: int) -> dict[str, Any]:
        """Gradients are means over so many images; times a power of two fewer of them are too small for fp16."""
        if self.compress == "fp16":
            return {"type": "fp16", "scale": float(1 << batch.bit_length() - 1)}
        return {"type": "2bit", "threshold": self.threshold / batch} if self.compress == "2bit" else {}

    def roles(self, workers: int, servers: int | None) -> tuple[Role, ...]:
        from shoal.launch.job import Role

        expendable = self.mode == "async" or self.on_dead == "continue"
        return (
            Role("worker", workers, (), expendable=expendable),
            Role("server", 1 if servers is None else servers, ()),
        )

    def check(self, workers: int, servers: int, shards: int) -> None:
        if servers < 1:
            raise UsageError("strategy ps needs at least one parameter server: --servers 1")
        super().check(workers, 0, shards)

    def join(self, world: World | None, device: torch.device, *, listen_fd: int | None = None) -> Gang:
        from shoal.kvstore.client import Client
        from shoal.launch.handshake import read_secret
        from shoal.launch.worlds import SERVERS
        from shoal.step.served import Served

        addresses = [address for address in os.environ.get(SERVERS, "").split(",") if address]
        if world is None or not addresses:
            raise UsageError(f"strategy ps: {SERVERS} names no servers; start it with: shoal train … -n N -s S")
        client = Client(addresses, world.rank, world.num_ranks, read_secret())
        return Served(client, world.rank, world.num_ranks, device, num_servers=len(addresses))

    def rig(
        self,
        model: torch.nn.Module,
        make_optimizer: MakeOptimizer,
        task: Task,
        precision: Precision,
        gang: Gang,
        spec: RigSpec,
    ) -> Rig:
        from shoal.kvstore.layout import Terms
        from shoal.step.served import Served
        from shoal.strategies.replicated import asynchronous, servers

        assert isinstance(gang, Served), "a gang that was joined without servers"
        terms = Terms(
            on_dead=self.on_dead,
            mode=self.mode,
            shards=spec.shards if self.deterministic else None,
            damped_beyond=spec.shards if self.damping else 0,
            compression=self._compression(spec.batch),
        )
        if self.mode == "async":
            exchange, kind = asynchronous.PushedAlone(gang, spec.shards), asynchronous.AsyncRig
        else:
            exchange = servers.PushedTree(gang, spec.shards) if self.deterministic else servers.Pushed(gang)
            kind = servers.PsRig
        return kind(model, make_optimizer, task, precision, gang, spec, exchange, terms)
