"""`shoal train … -s`: parameter servers as people start them, killed and started again."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from figures import STEPS, STEPS_PER_EPOCH, bits, figures, reached, wait_until
from program import SHOAL, Program, run_shoal, shoal, wait_for
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lag import Lag
from shoal.base.run import Run

IN_ORDER = "strategy=ps:deterministic=true"
pytestmark = pytest.mark.slow


def test_any_number_of_workers_and_servers_trains_the_same_bits(recipe: Path, reference: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    result = run_shoal(tmp_path, "train", recipe, IN_ORDER, "-n", "2", "-s", "2", "--run", folder)
    assert result.code == 0, result
    assert bits(folder) == bits(reference)
    assert figures(folder) == figures(reference)
    assert not list((folder / "servers").glob("*")), "a snapshot outlived its job"


def test_killed_and_resumed_with_others(recipe: Path, reference: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with shoal(tmp_path, "train", recipe, IN_ORDER, "-n", "3", "-s", "2", "--run", folder) as program:
        wait_until(folder, 10)
        for pid in program.alive():
            os.kill(pid, signal.SIGKILL)
    assert reached(folder) < STEPS
    result = run_shoal(tmp_path, "train", recipe, IN_ORDER, "-n", "1", "-s", "1", "--run", folder)
    assert result.code == 0, result
    assert bits(folder) == bits(reference)
    assert figures(folder) == figures(reference)


def the(role: str, rank: int) -> Callable[[Program], int]:
    """The process of a role."""

    def find(program: Program) -> int | None:
        for pid in program.alive():
            try:
                env = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if f"SHOAL_ROLE={role}".encode() in env and f"SHOAL_RANK={rank}".encode() in env:
                return pid
        return None

    return lambda program: wait_for(lambda: find(program), f"{role} {rank}")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["strategy=ps", "-s", "0"], "strategy ps needs at least one parameter server: --servers 1"),
        (["-s", "1"], "--servers 1: strategy ddp has no servers"),
        (["--kv-store", "dist"], "--kv-store: no type 'dist'"),
    ],
)
def test_command_lines_that_are_refused(args: list[str], words: str, recipe: Path, tmp_path: Path) -> None:
    result = run_shoal(tmp_path, "train", recipe, "--run", tmp_path / "run", *args)
    assert result.code == 2 and words in result.err, result


def test_nodes_started_by_hand_get_no_servers(recipe: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.touch(0o600)
    secret.write_text("for this test only")
    words = ("strategy=ps", "--node-rank", "0", "--num-nodes", "2", "--rendezvous", "127.0.0.1:1")
    result = run_shoal(tmp_path, "train", recipe, *words, "--secret-file", secret)
    assert result.code == 2 and "--node-rank starts no parameter servers" in result.err, result


@pytest.mark.parametrize(
    ("kv_store", "strategy", "servers"),
    [("local", "dp", 0), ("device", "dp", 0), ("dist_sync", "ps", 1), ("dist_device_sync", "ps", 1)],
)
def test_mxnets_names(kv_store: str, strategy: str, servers: int, tmp_path: Path) -> None:
    result = run_shoal(tmp_path, "train", "digits", "--kv-store", kv_store, "--dry-run", "-n", "1")
    assert result.code == 0, result
    assert result.out.count("localhost server-") == servers
    told = run_shoal(tmp_path, "train", "digits", "--kv-store", kv_store, "-n", "5", "--dry-run")
    assert told.code == 2 and (strategy == "dp") == ("strategy dp has one worker" in told.err), told


def test_servers_that_were_started_by_hand(recipe: Path, reference: Path, tmp_path: Path) -> None:
    secret, folder = tmp_path / "secret", tmp_path / "run"
    secret.touch(0o600)
    secret.write_text("for this test only")
    env = {"SHOAL_SECRET_FILE": str(secret)}
    serving = Program(tmp_path / "server", *SHOAL, "server", "--listen", "127.0.0.1:0", "-n", "2", env=env)
    said = next((tmp_path / "server").glob("*.out"))
    address = wait_for(lambda: re.search(r"listens at (\S+)\n", said.read_text()), "the server")[1]
    world = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    words = (*SHOAL, "train", str(recipe), IN_ORDER, "--run", str(folder))
    workers = [
        Program(
            tmp_path / f"worker-{rank}",
            *words,
            env={**env, **world, "SHOAL_SERVERS": address, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(2)
    ]
    results = [program.result() for program in (*workers, serving)]
    assert [result.code for result in results] == [0, 0, 0], results
    assert bits(folder) == bits(reference)


def test_a_dead_worker_is_named_with_its_step(recipe: Path, tmp_path: Path, lag: Lag) -> None:
    folder = tmp_path / "run"
    with shoal(tmp_path, "train", recipe, "strategy=ps", "length=1000ep", "-n", "2", "--run", folder) as program:
        wait_until(folder, 10)
        pid = the("worker", 1)(program)
        began = lag.begin()
        os.kill(pid, signal.SIGKILL)
        result = program.result()
        assert time.monotonic() - began < lag.allows(5.0), result
    assert result.code == 1
    assert "worker 1 failed first: killed by SIGKILL" in result.err
    assert re.search(r"worker 1 on \S+ is gone (at|after) (a barrier after )?step \d+", result.err), str(result)


@pytest.mark.parametrize(("servers", "dead"), [(1, 1), (2, 0)])
def test_the_rest_compute_the_same_batch_again(
    servers: int, dead: int, recipe: Path, reference: Path, tmp_path: Path
) -> None:
    folder, strategy = tmp_path / "run", f"{IN_ORDER},on_dead=continue"
    with shoal(tmp_path, "train", recipe, strategy, "-n", "3", "-s", str(servers), "--run", folder) as program:
        wait_until(folder, 8)
        os.kill(the("worker", dead)(program), signal.SIGKILL)
        result = program.result()
    assert result.code == 0, result
    assert f"worker {dead} was killed by SIGKILL; the others went on" in result.err
    told = Run(folder).log("worker", 1 - dead).read_text()
    assert re.search(r"2 workers go on with step \d+", told), told
    steps = [event["step"] for event in Run(folder).read_metrics() if event["event"] == "train"]
    assert steps == sorted(set(steps)) and steps[-1] == STEPS
    got, expected = bits(folder), bits(reference)
    for key in ("model", "ema", "optimizer", "kept", "best"):  # its part of the training figures died with the worker
        assert got[key] == expected[key], key


@pytest.mark.parametrize("servers", [1, 2])
def test_a_killed_server_is_started_again_and_all_roll_back(
    servers: int, recipe: Path, reference: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    with shoal(tmp_path, "train", recipe, IN_ORDER, "-n", "2", "-s", str(servers), "--run", folder) as program:
        for step in (6, 20):
            wait_until(folder, step)
            os.kill(the("server", servers - 1)(program), signal.SIGKILL)
            wait_for(lambda: reached(folder) < STEPS or None, "it to go on")
        result = program.result()
    assert result.code == 0, result
    assert f"server {servers - 1} was killed by SIGKILL; it is started again" in result.err
    assert "all go on from the newest checkpoint" in Run(folder).log("worker", 0).read_text()
    assert bits(folder) == bits(reference)
    assert figures(folder) == figures(reference)


LOOSE = ("strategy=ps:mode=async", "save_every=1ep", "eval_every=1ep", "log_every=10st")


def accounts(folder: Path) -> list[dict]:
    return [event for event in Run(folder).read_metrics() if event["event"] == "staleness"]


def test_asynchronously_every_image_counts_once(recipe: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with shoal(tmp_path, "train", recipe, *LOOSE, "-n", "3", "-s", "2", "--run", folder) as program:
        wait_until(folder, STEPS_PER_EPOCH + 5)
        for pid in program.alive():
            os.kill(pid, signal.SIGKILL)
    result = run_shoal(tmp_path, "train", recipe, *LOOSE, "-n", "2", "-s", "1", "--run", folder)
    assert result.code == 0, result
    assert "Resumed  from step 30" in result.err
    told = accounts(folder)
    assert [event["step"] for event in told] == [30, 60]
    for event, workers in zip(told, (3, 2), strict=True):
        assert event["counted"] == event["expected"] == 1190
        assert event["workers"] == workers == sum(pushes > 0 for pushes in event["pushes"])
        assert sum(event["counts"]) == sum(event["pushes"]) == 30 * 6
        assert 0 < event["mean"] < 2 * (workers - 1)
    scores = [event for event in Run(folder).read_metrics() if event["event"] == "val"]
    assert [event["count"] for event in scores] == [359, 359]
    assert scores[-1]["top1"] > 0.6  # how far it comes depends on who was how late
    (saved,) = (folder / "checkpoints").glob("step-*60/state.pt")
    saved_groups = torch.load(saved, weights_only=True)["optimizer"]["param_groups"]
    for group in saved_groups:  # of whole steps, as every strategy's
        assert (group["momentum"], group["dampening"], group["nesterov"]) == (0.9, 0, True)
        assert group["weight_decay"] in (0.0, 5e-4)
    accumulator = EventAccumulator(str(folder / "tensorboard"))
    accumulator.Reload()
    shown = accumulator.Histograms("staleness")[-1]
    assert shown.step == 60 and shown.histogram_value.num == 180
    assert list(shown.histogram_value.bucket)[1:] == told[-1]["counts"]


def test_a_signal_stops_asynchronous_workers_at_one_step(recipe: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with shoal(
        tmp_path, "train", recipe, *LOOSE, "length=50ep", "eval_every=50ep", "-n", "2", "--run", folder
    ) as program:
        wait_until(folder, 10)
        program.signal(signal.SIGTERM)
        result = program.result()
    assert result.code == 75, result
    last = accounts(folder)[-1]
    assert last["counted"] == last["expected"]
    assert Run(folder).steps_saved()[-1] == last["step"]


@pytest.mark.parametrize("who", [("worker", 0), ("server", 0)], ids=lambda who: f"{who[0]}-{who[1]}")
def test_asynchronously_the_others_go_on(who: tuple[str, int], recipe: Path, tmp_path: Path) -> None:
    folder, (role, number) = tmp_path / "run", who
    long = ("length=12ep", "eval_every=6ep", "save_every=6ep")
    with shoal(tmp_path, "train", recipe, *LOOSE, *long, "-n", "3", "-s", "1", "--run", folder) as program:
        wait_until(folder, 40)
        os.kill(the(role, number)(program), signal.SIGKILL)
        result = program.result()
    assert result.code == 0, result
    last = accounts(folder)[-1]
    assert last["step"] == 12 * STEPS_PER_EPOCH
    if role == "worker":
        assert f"worker {number} was killed by SIGKILL; the others went on" in result.err
        assert last["workers"] == 2 and last["counted"] == last["expected"]
    else:
        assert "server 0 was killed by SIGKILL; it is started again" in result.err
        assert "is back with version" in Run(folder).log("worker", 0).read_text()
    scores = [event for event in Run(folder).read_metrics() if event["event"] == "val"]
    assert [event["count"] for event in scores] == [359, 359]
    assert scores[-1]["top1"] > 0.9


def test_asynchronously_what_overflows_is_left_out_and_accounted_for(tmp_path: Path) -> None:
    recipe, folder = tmp_path / "tiny.yaml", tmp_path / "run"
    recipe.write_text(
        "data: {name: synthetic, images: 32, classes: 3, channels: 1, size: 8}\nmodel: digits-cnn\nbatch: 8\n"
        "shards: 4\noptim: {name: sgd, lr: 0.05}\nschedule: constant\nlength: 2ep\nstrategy: {name: ps, mode: async}\n"
        "precision: {name: O2, unsuited: slow, init_scale: 16777216}\n"
    )
    result = run_shoal(tmp_path, "train", recipe, "-n", "2", "strategy.threads=1", "--run", folder)
    assert result.code == 0, result
    events = Run(folder).read_metrics()
    scales = [event["loss_scale"] for event in events if event["event"] == "skip"]
    assert scales and scales == [2.0 ** (23 - number) for number in range(len(scales))]  # of the first worker
    told = [(event["counted"] + event["dropped"], event["again"]) for event in accounts(folder)]
    assert told == [(32, 0), (32, 0)] and accounts(folder)[0]["dropped"] > 0
