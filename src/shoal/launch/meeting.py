"""Meeting: whether the place where all workers meet can be reached from here, and what is wrong where it cannot."""

from __future__ import annotations

import socket

from shoal.base.errors import ShoalError
from shoal.base.world import World

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
