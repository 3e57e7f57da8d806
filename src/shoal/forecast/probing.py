"""What a process of the probe does: `python -m shoal.forecast.probing FOLDER RANK`. Imports torch.

All processes compute at the same time, as the workers of a host do; two of them exchange; one more may be a server.
FOLDER/task.json says what to do; rank 0 leaves FOLDER/calibration.json, or whoever fails FOLDER/error.txt.
"""

from __future__ import annotations

import contextlib
import datetime
import itertools
import math
import os
import socket
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.distributed as dist

from shoal.base.errors import ShoalError
from shoal.data.batches import Batches, eval_chunks
from shoal.forecast.calibration import Calibration
from shoal.forecast.task import ERROR, FOUND, TASK, Task
from shoal.kvstore.client import Client
from shoal.kvstore.layout import Layout, Terms
from shoal.kvstore.server import Server
from shoal.kvstore.updater import describe
from shoal.recipe.load import parse
from shoal.recipe.recipe import Recipe
from shoal.step.gang import Alone
from shoal.step.meters import Meters
from shoal.strategies.single import Single
from shoal.train.allocator import keep_memory
from shoal.train.checkpoint import save
from shoal.train.setup import Data, Setup, make_model, open_data

BLOCKS = 4
SMALL, LARGE = 1 << 12, 1 << 22
"""Bytes between which the cost of an all-reduce is taken to be a line."""
SERVED = 1 << 20
"""Numbers that a parameter server holds in the measurement."""


def main(folder: Path, rank: int) -> int:
    task = msgspec.json.decode((folder / TASK).read_bytes(), type=Task)
    try:
        if rank >= task.processes:
            return _serve(folder, task, rank - task.processes)
        recipe = parse(task.recipe, "recipe").recipe
        found = bare(recipe) if task.only_size else Probe(folder, task, recipe, open_data(recipe), rank).measure()
    except ShoalError as error:
        (folder / ERROR).write_text(str(error))
        return error.exit_code
    if rank == 0:
        (folder / FOUND).write_bytes(msgspec.json.encode(found))
    return 0


def size(recipe: Recipe, data: Data) -> Calibration:
    """What is known without computing: how large the model and the data are."""
    model = make_model(recipe, data.classes, data.train.shape[0], pretrained=False).module
    counted = _counted(recipe, model)
    return msgspec.structs.replace(counted, images_per_epoch=len(data.train.labels), val_images=len(data.val.labels))


def bare(recipe: Recipe) -> Calibration:
    """The same, whether or not the data is here, with the order of a step's events as two blank images show it: shares
    of time, which hold on other devices too, as far as anything does that was measured on this one."""
    classes, channels, side = recipe.model.classes or 1000, 3, 224
    images = val_images = 0
    with contextlib.suppress(ShoalError):
        data = open_data(recipe)
        side = max(recipe.data.augment.seen(*data.train.shape[1:]))  # type: ignore[attr-defined]
        classes, channels = data.classes, data.train.shape[0]
        images, val_images = len(data.train.labels), len(data.val.labels)
    model = make_model(recipe, classes, channels, pretrained=False).module
    blank = torch.zeros(2, channels, side, side)

    def both() -> None:
        model(blank).sum().backward()

    both()
    return msgspec.structs.replace(
        _counted(recipe, model),
        images_per_epoch=images,
        val_images=val_images,
        gradients=readiness(model, both),
        activation_bytes=activation_bytes(model, both, len(blank)),
    )


def _counted(recipe: Recipe, model: torch.nn.Module) -> Calibration:
    wide = recipe.precision.dtype().itemsize  # type: ignore[attr-defined]
    numbers = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    return Calibration(
        source="",
        images_per_epoch=0,
        parameters=numbers,
        gradient_bytes=numbers * wide,
        side_bytes=8 * sum(buffer.numel() for buffer in model.buffers()),
        image_s=0.0,
    )


def readiness(model: torch.nn.Module, both: Callable[[], object]) -> list[tuple[int, float]]:
    """(bytes, when as a share of the time) of each gradient, in the order in which `both`, a forward and a backward
    pass, makes them."""
    seen: list[tuple[int, float]] = []

    def note(parameter: torch.Tensor) -> None:
        seen.append((parameter.numel() * parameter.element_size(), time.perf_counter()))

    hooks = [p.register_post_accumulate_grad_hook(note) for p in model.parameters() if p.requires_grad]
    began = time.perf_counter()
    both()
    took = time.perf_counter() - began
    for hook in hooks:
        hook.remove()
    return [(nbytes, min(1.0, (when - began) / took)) for nbytes, when in seen]


def activation_bytes(model: torch.nn.Module, forward: Callable[[], object], images: int) -> float:
    """Of one image, after the model's parts at the top: their median, as where a pipeline would be cut."""
    sizes: list[int] = []

    def note(module: Any, inputs: Any, output: Any) -> None:
        if isinstance(output, torch.Tensor):
            sizes.append(output.numel() * output.element_size() // images)

    hooks = [child.register_forward_hook(note) for child in model.children()]
    forward()
    for hook in hooks:
        hook.remove()
    return float(statistics.median(sizes)) if sizes else 0.0


class Probe:
    """One of the processes that compute."""

    def __init__(self, folder: Path, task: Task, recipe: Recipe, data: Data, rank: int) -> None:
        self.folder, self.task, self.recipe, self.data, self.rank = folder, task, recipe, data, rank
        self.cuda = torch.cuda.is_available()
        self.device = torch.device("cuda", rank % torch.cuda.device_count()) if self.cuda else torch.device("cpu")
        self.busy = rank < task.together
        torch.set_num_threads(task.threads)
        keep_memory()
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        dist.init_process_group(
            "gloo",
            init_method=f"file://{folder / 'store'}",
            rank=rank,
            world_size=task.processes,
            timeout=datetime.timedelta(seconds=task.limit_s),
        )

    def measure(self) -> Calibration:
        steps: dict[int, list[list[tuple[float, float]]]] = {images: [] for images in self._sizes()}
        extra: dict[str, Any] = {}
        if self.busy:
            loops = {images: Loop(self.recipe, self.data, images, self.device) for images in steps}
            for loop in loops.values():
                loop.warm(self.task.compute_s / 8)
        dist.barrier()
        for _ in range(BLOCKS):
            for images, blocks in steps.items():
                if self.busy:
                    blocks.append(loops[images].run(self.task.compute_s / BLOCKS / len(steps)))
                dist.barrier()
        if self.busy:
            extra = self._beside(loops[max(loops)], min(1.0, self.task.compute_s / 8))
        dist.barrier()
        exchange = self._exchange()
        served = self._servers() if self.task.servers else (0.0, 0.0, 0.0)
        told: list[Any] = [None] * self.task.processes
        dist.all_gather_object(told, (steps, extra) if self.busy else None)
        dist.destroy_process_group()
        return self._together([one for one in told if one is not None], exchange, served)

    def _sizes(self) -> list[int]:
        """Sizes of shards to measure: as asked, but none of which a step would take too long."""
        most = torch.tensor([max(self.task.shard_images)])
        if self.rank == 0:
            loop = Loop(self.recipe, self.data, 2, self.device)  # one image alone has no statistics
            loop.step()
            seconds = min(sum(loop.step()) for _ in range(2))
            most[0] = max(2, min(int(most), int(self.task.compute_s / BLOCKS / 4 / seconds * 2)))
            loop.close()
        dist.broadcast(most, src=0)
        return sorted({max(2, min(images, int(most))) for images in self.task.shard_images})

    def _beside(self, loop: Loop, budget_s: float) -> dict[str, Any]:
        """What is measured after the blocks, in all busy processes at once."""
        return {
            "gradients": readiness(loop.rig.model, loop.both),
            "activation_bytes": activation_bytes(loop.rig.model, loop.both, loop.images),
            "load_image_s": loop.load(budget_s),
            "eval_image_s": loop.evaluate(budget_s),
            "save_s": loop.save(self.folder / f"checkpoint-{self.rank}"),
        }

    def _together(self, told: list[Any], exchange: tuple[float, float], served: tuple[float, ...]) -> Calibration:
        sizes = sorted(told[0][0])
        shard = {b: statistics.fmean(t for steps, _ in told for block in steps[b] for t, _ in block) for b in sizes}
        update = statistics.fmean(
            t for steps, _ in told for blocks in steps.values() for block in blocks for _, t in block
        )
        small, large = sizes[0], sizes[-1]
        image_s = (shard[large] - shard[small]) / (large - small) if large > small else shard[large] / large
        image_s = min(max(image_s, 0.0), shard[large] / large)
        blocks = [statistics.fmean(sum(step) for step in block) for steps, _ in told for block in steps[large] if block]
        extra = {key: [one[key] for _, one in told] for key in told[0][1]}
        mean = {key: statistics.fmean(extra[key]) for key in ("load_image_s", "eval_image_s", "save_s")}
        return msgspec.structs.replace(
            size(self.recipe, self.data),
            device=self.device.type,
            gradients=extra["gradients"][0],
            activation_bytes=extra["activation_bytes"][0],
            shard_s=max(0.0, shard[large] - image_s * large),
            image_s=image_s,
            update_s=update,
            jitter=statistics.fmean(_jitter([t for block in steps[large] for t, _ in block]) for steps, _ in told),
            spread=statistics.stdev(blocks) / statistics.fmean(blocks),
            hop_s=exchange[0],
            sum_byte_s=exchange[1],
            call_s=served[0],
            serve_byte_s=served[1],
            share_byte_s=served[2],
            **mean,
        )

    def _exchange(self) -> tuple[float, float]:
        """(seconds a message, seconds a byte) of gloo's all-reduce between two processes here."""
        two: Any = dist.new_group([0, 1], backend="gloo")
        if self.rank > 1:
            return 0.0, 0.0
        took: dict[int, float] = {}
        for nbytes in (SMALL, LARGE):
            tensor = torch.zeros(nbytes // 4)
            took[nbytes] = _timed(lambda tensor=tensor: dist.all_reduce(tensor, group=two), two, 0.5)
        byte_s = max(0.0, took[LARGE] - took[SMALL]) / (LARGE - SMALL)
        return max(0.0, took[SMALL] - SMALL * byte_s) / 2, byte_s

    def _servers(self) -> tuple[float, float, float]:
        """(seconds a question, a byte over TCP, a byte through shared memory) with two workers and one server here."""
        if self.rank > 1:
            dist.barrier()
            return 0.0, 0.0, 0.0
        secret = bytes.fromhex(task.secret) if (task := self.task).secret else b""
        call_s, byte_s = 0.0, []
        for number, shared in enumerate((False, True)):
            address = _address(self.folder, number, task.limit_s)
            client = Client([address], self.rank, 2, secret, shared_memory=shared)
            held = [torch.zeros(SERVED)]
            described = describe(torch.optim.SGD(held, lr=0.0, momentum=0.9), held)
            client.init(held[0], Layout.of([("all", held[0])]), described, Terms())
            client.gradient.zero_()
            small = torch.zeros(4, dtype=torch.float64)
            if not shared:
                call_s = _timed_by_client(client, lambda client=client, small=small: client.side(small), 0.3)
            took = _timed_by_client(client, _round(client, held[0]), 0.7)
            # Two workers, there and back, four bytes a number; the commit and the pull are questions, too.
            byte_s.append(max(0.0, took - 2 * call_s) / (2 * 2 * 4 * SERVED))
            client.close()
        dist.barrier()
        return call_s, byte_s[0], byte_s[1]


class Loop:
    """The recipe's own step on one worker, with one shard of so many images."""

    def __init__(self, recipe: Recipe, data: Data, images: int, device: torch.device) -> None:
        one = msgspec.structs.replace(
            recipe, batch=images, batch_per_worker=None, shards=1, accumulate=1, strategy=Single(), drop_last=True
        )
        self.images, self.recipe, self.data, self.device = images, one, data, device
        setup = Setup.of(one, Alone(device), data, pretrained=False)
        self.rig, self.cut = setup.rig, setup.cut
        self.meters = Meters(1, Alone(device))
        self._batches = self._made().steps(0, 1 << 40)
        self._last: Any = None

    def _made(self) -> Batches:
        data: Any = self.recipe.data
        return Batches(
            self.data.train,
            data.augment,
            self.cut,
            thread=data.threads > 0,
            decoders=data.threads,
            pin=self.device.type == "cuda",
        )

    def step(self) -> tuple[float, float]:
        """Seconds of the shard's passes, and of the rest of the step; waiting for images is neither."""
        (batch,) = next(self._batches)
        began = time.perf_counter()
        output = self.rig.forward_backward(batch, last=True)
        self._settle()
        half = time.perf_counter()
        self.rig.apply(0.0, self.images)
        self.meters.add(batch, output)
        self._settle()
        self._last = batch
        return half - began, time.perf_counter() - half

    def _settle(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def warm(self, budget_s: float) -> None:
        """First steps allocate, and choose kernels."""
        until = time.perf_counter() + budget_s
        self.step()
        while time.perf_counter() < until:
            self.step()

    def run(self, budget_s: float) -> list[tuple[float, float]]:
        """At least one step."""
        took: list[tuple[float, float]] = []
        until = time.perf_counter() + budget_s
        while not took or time.perf_counter() < until:
            took.append(self.step())
        return took

    def close(self) -> None:
        self._batches.close()

    def both(self) -> None:
        """The forward and the backward pass of the last batch once more."""
        self.rig.forward_backward(self._last, last=True)
        self._settle()
        self.rig.apply(0.0, self.images)

    def load(self, budget_s: float) -> float:
        """Seconds of an image when nothing but images is made."""
        batches, step = self._made(), 0
        began = time.perf_counter()
        while (took := time.perf_counter() - began) < budget_s or not step:
            batches.prepare(step)
            step += 1
        return took / (step * self.images)

    def evaluate(self, budget_s: float) -> float:
        """Seconds of an image in validation."""
        data: Any = self.recipe.data
        chunks = eval_chunks(self.data.val, data.augment, min(data.eval_batch, 64))
        done, began, took = 0, time.perf_counter(), 0.0
        for _, batch in chunks:
            self.rig.evaluate(batch)
            self._settle()
            done, took = done + len(batch.labels), time.perf_counter() - began
            if took > budget_s:
                break
        return took / max(1, done)

    def save(self, path: Path) -> float:
        """Seconds of a checkpoint, in the temporary folder."""
        state = self.rig.state_dict()
        began = time.perf_counter()
        save(path, model=state["model"], ema=state.get("ema"), state={"optimizer": state["optimizer"]}, manifest={})
        return time.perf_counter() - began


def _timed(work: Callable[[], object], group: Any, budget_s: float) -> float:
    """Median seconds of what two processes do together; the first decides how often."""
    for _ in range(2):
        work()
    began = time.perf_counter()
    work()
    count = torch.tensor([max(5, min(200, int(budget_s / max(1e-6, time.perf_counter() - began))))])
    dist.broadcast(count, src=0, group=group)
    took = []
    for _ in range(int(count)):
        began = time.perf_counter()
        work()
        took.append(time.perf_counter() - began)
    return statistics.median(took)


def _timed_by_client(client: Client, work: Callable[[], object], budget_s: float) -> float:
    """The same where the server is what they have in common."""
    work()
    began = time.perf_counter()
    work()
    mine = torch.tensor([budget_s / max(1e-6, time.perf_counter() - began)], dtype=torch.float64)
    count = max(5, min(100, int(client.side(mine)[0] / 2)))
    took = []
    for _ in range(count):
        began = time.perf_counter()
        work()
        took.append(time.perf_counter() - began)
    return statistics.median(took)


def _jitter(times: list[float]) -> float:
    """Standard deviation / mean from the differences of neighbours: what drifts slowly is no jitter."""
    if len(times) < 2:
        return 0.0
    differences = [abs(a - b) for a, b in itertools.pairwise(times)]
    return statistics.fmean(differences) * math.sqrt(math.pi) / 2 / statistics.fmean(times)


def _round(client: Client, flat: torch.Tensor) -> Callable[[], object]:
    """A synchronous step of a client, but for computing."""
    steps = itertools.count(1)

    def turn() -> None:
        client.push(0, client.gradient)
        client.commit(next(steps), lr=0.0)
        client.pull(flat)

    return turn


def _address(folder: Path, number: int, limit_s: float) -> str:
    until, path = time.monotonic() + limit_s, folder / f"address-{number}"
    while not path.exists():
        if time.monotonic() > until:
            raise ShoalError("the probe's parameter server did not start")
        time.sleep(0.01)
    return path.read_text()


def _serve(folder: Path, task: Task, number: int) -> int:
    torch.set_num_threads(1)
    listening = socket.create_server(("127.0.0.1", 0))
    server = Server(listening, bytes.fromhex(task.secret), 2)
    aside = folder / f"address-{number}.aside"
    aside.write_text(":".join(map(str, listening.getsockname()[:2])))
    aside.rename(folder / f"address-{number}")
    server.serve()
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))
