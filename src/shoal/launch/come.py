"""Come: what an engine started on a host comes to the launcher, and is the agent there."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping

from shoal.base.errors import DONE, ShoalError, UsageError
from shoal.launch.handshake import Unreachable, connect, read_secret
from shoal.launch.seats import PURPOSE, Seat, take

HEAD, SECRET, NUM_NODES, NODE = "SHOAL_HEAD", "SHOAL_HEAD_SECRET", "SHOAL_HEAD_NODES", "SHOAL_HEAD_NODE"
SECRET_FILE = "SHOAL_HEAD_SECRET_FILE"
"""The variables that hold the launcher's host:port, what proves that one belongs to it, how many come, and who this
is. The secret is in the environment, which nobody else on the host can read, or in a file; never on a command line."""
RANKS = (NODE, "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
"""Where engines say which of the processes that they started this is."""
PATIENCE_S = 30.0
"""How long the launcher may take to answer."""


def come(env: Mapping[str, str]) -> int:
    """Is an agent of the job that `env` speaks of, until that ends. The exit code is 0, however the job ends: engines
    hurry to end what fails, and the launcher sees to that itself."""
    try:
        host, _, port = env[HEAD].rpartition(":")
        secret = env[SECRET].encode() if SECRET in env else read_secret(env[SECRET_FILE])
        num_nodes, job = int(env[NUM_NODES]), env["SHOAL_JOB"]
        node = int(next(env[name] for name in RANKS if name in env).rpartition("-")[2])  # 3, or agent-3
    except (KeyError, ValueError, StopIteration):
        raise UsageError("`shoal agent --come` is started by the launchers alone") from None
    connection = _connect((host, int(port)), secret)
    take(connection, Seat(node, num_nodes, job), f"the launcher at {host}:{port}")
    here, there = connection.getsockname(), connection.getpeername()
    # As under ssh: by which addresses the two hosts see each other.
    os.environ["SSH_CONNECTION"] = f"{there[0]} {there[1]} {here[0]} {here[1]}"
    os.environ.pop(SECRET, None)
    from shoal.launch.agent import main

    descriptor = connection.detach()
    main(descriptor, descriptor)
    return DONE


def _connect(address: tuple[str, int], secret: bytes) -> socket.socket:
    limit = time.monotonic() + PATIENCE_S
    while True:
        try:
            return connect(address, secret, PURPOSE)
        except Unreachable as error:
            if time.monotonic() >= limit:
                raise ShoalError(f"the launcher at {error}") from None
            time.sleep(0.5)
