"""`shoal train … -s`: parameter servers as people start them, killed and started again."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from figures import STEPS, bits, figures, reached, wait_until
from program import Program, run_shoal, shoal, wait_for

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


def test_a_dead_worker_is_named_with_its_step(recipe: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with shoal(tmp_path, "train", recipe, "strategy=ps", "length=1000ep", "-n", "2", "--run", folder) as program:
        wait_until(folder, 10)
        began = time.monotonic()
        os.kill(the("worker", 1)(program), signal.SIGKILL)
        result = program.result()
        assert time.monotonic() - began < 5, result
    assert result.code == 1
    assert "worker 1 failed first: killed by SIGKILL" in result.err
    assert re.search(r"worker 1 on \S+ is gone at step \d+", result.err), result


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
