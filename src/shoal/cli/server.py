"""`shoal server` (inside): what a launcher starts for each parameter server; by hand for a KVStore of one's own."""

from __future__ import annotations

import hashlib
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import click

from shoal.base.errors import ShoalError, UsageError
from shoal.base.run import Run


@click.command("server", hidden=True)
@click.option("--run", "folder", type=click.Path(path_type=Path), help="The run's folder, from a launcher.")
@click.option("--listen", "address", help="HOST:PORT by hand; port 0 is any free one.")
@click.option("-n", "--workers", type=click.IntRange(1), help="By hand: how many workers come.")
@click.option("--rank", type=click.IntRange(0), default=0, help="By hand: which of the servers this is.")
@click.option("-s", "--servers", type=click.IntRange(1), default=1, help="By hand: how many servers there are.")
@click.option("--threads", type=click.IntRange(1), help="For the mathematics; absent: a fair share of the cores.")
@click.option("--snapshot", type=click.Path(path_type=Path), help="By hand: a file to go on from after a restart.")
@click.option("--snapshot-s", type=float, default=10.0, show_default=True, help="Seconds between snapshots (async).")
@click.option("--step-limit", type=float, default=300.0, show_default=True, help="Seconds a round waits for a worker.")
def command(folder: Path | None, address: str | None, **options: Any) -> int:
    """Holds parameters for workers until the last one says goodbye."""
    from shoal.launch.handshake import read_secret
    from shoal.launch.report import report_error

    try:
        return _serve(folder, address, options, read_secret())
    except ShoalError as error:
        report_error(str(error), exit_code=error.exit_code)
        raise


def _serve(folder: Path | None, address: str | None, options: dict[str, Any], secret: bytes) -> int:
    if folder is not None:
        listening, workers, rank, servers = _launched()
        snapshot = _snapshot(Run(folder), rank, secret)
    else:
        workers, rank, servers = options["workers"], options["rank"], options["servers"]
        if not workers or not address:
            raise UsageError("shoal server: by hand it wants --listen HOST:PORT and -n WORKERS")
        if rank >= servers:
            raise UsageError(f"shoal server: server {rank} of {servers} cannot be")
        listening, snapshot = _listen(address), options["snapshot"]

    import torch

    import shoal.step.orthogonal  # noqa: F401  (registers its optimizer)
    from shoal.base.host import cores
    from shoal.kvstore.layout import Limits
    from shoal.kvstore.server import Server
    from shoal.train import compiler

    compiler.leave_out()
    torch.set_num_threads(options["threads"] or max(1, cores() // (workers + servers)))
    server = Server(
        listening,
        secret,
        workers,
        rank=rank,
        num_servers=servers,
        limits=Limits(step_s=options["step_limit"]),
        snapshot=snapshot,
        snapshot_s=options["snapshot_s"],
        tell=_tell,
    )
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, lambda number, frame: server.asked_to_leave())
    if address:
        print(f"server {rank} listens at {':'.join(map(str, listening.getsockname()[:2]))}", flush=True)
    code = server.serve()
    if code == 0 and snapshot is not None:
        snapshot.unlink(missing_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # threads that wait for workers which will not come


def _launched() -> tuple[socket.socket, int, int, int]:
    from shoal.base.world import World
    from shoal.launch.worlds import NUM_WORKERS

    world = World.from_env(os.environ)
    if world is None or "SHOAL_LISTEN_FD" not in os.environ:
        raise UsageError("shoal server: --run is for launchers")
    return (
        socket.socket(fileno=int(os.environ["SHOAL_LISTEN_FD"])),
        int(os.environ[NUM_WORKERS]),
        world.rank,
        world.num_ranks,
    )


def _listen(address: str) -> socket.socket:
    from shoal.launch.ports import listen

    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise UsageError(f"--listen {address}: HOST:PORT is wanted, for instance 127.0.0.1:0")
    return listen(host, None if port == "0" else range(int(port), int(port) + 1))


def _snapshot(run: Run, rank: int, secret: bytes) -> Path:
    """Named after the job's secret: another life of this server in the same job finds it, no later job does."""
    folder = run.folder / "servers"
    mine = folder / f"server-{rank}-{hashlib.sha256(b'snapshot' + secret).hexdigest()[:16]}.safetensors"
    for old in folder.glob(f"server-{rank}-*"):
        if old != mine:
            old.unlink(missing_ok=True)
    return mine


def _tell(text: str) -> None:
    print(f"WARNING: {text}", file=sys.stderr, flush=True)
