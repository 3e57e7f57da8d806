"""`shoal server` (inside): what a launcher starts for each parameter server."""

from __future__ import annotations

import hashlib
import os
import socket
import sys
from pathlib import Path

import click

from shoal.base.errors import ShoalError
from shoal.base.run import Run


@click.command("server", hidden=True)
@click.option("--run", "folder", type=click.Path(path_type=Path), required=True)
def command(folder: Path) -> int:
    """One parameter server of a run whose folder holds the resolved recipe."""
    from shoal.launch.parent import die_with_parent

    die_with_parent()
    from shoal.launch.handshake import read_secret
    from shoal.launch.report import report_error

    try:
        return _serve(Run(folder), read_secret())
    except ShoalError as error:
        report_error(str(error), exit_code=error.exit_code)
        raise


def _serve(run: Run, secret: bytes) -> int:
    import torch

    from shoal.base.host import cores
    from shoal.base.world import World
    from shoal.kvstore.server import Server
    from shoal.launch.servers import NUM_WORKERS
    from shoal.recipe.load import load

    world = World.from_env(os.environ)
    assert world is not None, "a server is started by a launcher"
    num_workers = int(os.environ[NUM_WORKERS])
    strategy = load(str(run.recipe)).recipe.strategy
    # Sums over many numbers are cut at threads, so their bits depend on how many there are.
    alone = getattr(strategy, "deterministic", False)
    torch.set_num_threads(1 if alone else max(1, cores() // (num_workers + world.num_ranks)))
    with socket.socket(fileno=int(os.environ["SHOAL_LISTEN_FD"])) as listening:
        snapshot = _snapshot(run, world.rank, secret)
        server = Server(
            listening, secret, num_workers, rank=world.rank, num_servers=world.num_ranks, snapshot=snapshot, tell=_tell
        )
        code = server.serve()
    if code == 0:
        snapshot.unlink(missing_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # threads that wait for workers which will not come


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
