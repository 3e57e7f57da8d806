"""Meeting: whether the place where all workers meet, and one worker from another, can be reached; if not, why."""

from __future__ import annotations

import datetime
import os
import socket
from typing import Any

from shoal.base.errors import ShoalError
from shoal.base.world import World
from shoal.launch.interface import interfaces

LIMIT_S = 20.0


def check_meeting(world: World | None, limit_s: float = LIMIT_S) -> None:
    """ShoalError where worker 0's port does not answer. It listens before any worker is started, so that an answer
    needs no worker: whatever is wrong lies in between, and is told seconds before anything is computed."""
    if world is None or world.launcher != "shoal" or world.rank == 0 or world.num_ranks == 1:
        return
    host, _, port = world.rendezvous.rpartition(":")
    here = f"{world.role} {world.rank} on {socket.gethostname()}"
    try:
        with socket.create_connection((host, int(port)), timeout=limit_s):
            return
    except socket.gaierror:
        what = "that name is unknown here; add it to /etc/hosts, or give -H addresses"
    except ConnectionRefusedError:
        what = (
            "refused: nothing listens there; worker 0 is gone, or a firewall refuses the port (choose some by --ports)"
        )
    except TimeoutError:
        what = f"no answer in {limit_s:g} s: a firewall or another network lies between (choose ports by --ports)"
    except OSError as error:
        what = f"{error.strerror or error}"
    raise ShoalError(f"{here} cannot reach worker 0 at {world.rendezvous}: {what}; shoal doctor -H HOSTS shows more")


def check_neighbour(store: Any, world: World, limit_s: float) -> None:
    """ShoalError where the next rank cannot be reached from here: gloo would try for minutes, and name nobody.

    store: torch's, at which all ranks have met. Each listens a moment on the interface that was chosen for gloo; where
    none was chosen, gloo finds one by itself, and nothing is tried."""
    chosen = os.environ.get("GLOO_SOCKET_IFNAME", "").partition(",")[0]
    here = (interfaces().get(chosen) or [""])[0]
    listening = None
    if here:
        family = socket.AF_INET6 if ":" in here else socket.AF_INET
        listening = socket.create_server((here, 0), family=family)
    try:
        port = listening.getsockname()[1] if listening else 0
        store.set(f"at/{world.rank}", f"{here or '-'} {port} {socket.gethostname()}")
        following = (world.rank + 1) % world.num_ranks
        address, port, host = store.get(f"at/{following}").decode().split()
        reason = _reason(address, int(port), limit_s) if here and int(port) else ""
        store.set(f"tried/{world.rank}", "")
        every = [f"tried/{rank}" for rank in range(world.num_ranks)]
        store.wait(every, datetime.timedelta(seconds=3 * limit_s))  # until then, others may try this one
    finally:
        if listening:
            listening.close()
    if reason:
        raise ShoalError(
            f"rank {world.rank} on {socket.gethostname()} cannot reach rank {following} on {host} at {address} "
            f"({reason}), from interface {chosen} ({here}); choose another one: --env GLOO_SOCKET_IFNAME=NAME; "
            "which hosts reach each other: shoal doctor -H HOSTS"
        )


def _reason(address: str, port: int, limit_s: float) -> str:
    """Why no connection comes about; empty when it does."""
    try:
        socket.create_connection((address, port), timeout=limit_s).close()
        return ""
    except TimeoutError:
        return f"no answer in {limit_s:g} s"
    except OSError as error:
        return error.strerror or str(error)
