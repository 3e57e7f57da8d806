"""A Ray cluster on the hosts of `cluster.py`: its head on the head, a raylet on every host."""

from __future__ import annotations

import os
import secrets
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from cluster import Hosts
from daemon import daemon

PORT = 6399
UP_S = 90.0


def home() -> Path | None:
    """The environment that has ray: this one, or the one that SHOAL_TEST_RAY names. Ray is no dependency of Shoal's."""
    for place in (os.environ.get("SHOAL_TEST_RAY"), sys.prefix):
        if place and (Path(place) / "bin/ray").exists():
            return Path(place)
    return None


def why_not() -> str | None:
    return None if home() else "no ray here (pip install ray, or SHOAL_TEST_RAY=ENVIRONMENT where it is)"


@dataclass
class RayCluster:
    hosts: Hosts
    folder: Path

    @property
    def env(self) -> dict[str, str]:
        place = home()
        assert place is not None
        packages = next(place.glob("lib/python3*/site-packages"))
        token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(self.folder / "token")}
        quiet = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ADDRESS": f"{self.hosts.address_of_head}:{PORT}"}
        return {**token, **quiet, "PYTHONPATH": str(packages), "OMP_NUM_THREADS": "1"}

    def argv(self, *words: str) -> list[str]:
        """The command that runs `shoal WORDS` on the head."""
        variables = [f"{key}={value}" for key, value in self.env.items()]
        return self.hosts.on_head(["env", *variables, sys.executable, "-m", "shoal", *words])


@contextmanager
def ray_cluster(hosts: Hosts) -> Iterator[RayCluster]:
    """Up, with 4 CPUs on every host and none on the head; gone at the end."""
    one = RayCluster(hosts, hosts.folder / "r")
    one.folder.mkdir()
    (one.folder / "token").write_text(secrets.token_hex(32))
    (one.folder / "token").chmod(0o600)
    place = home()
    variables = [f"{key}={value}" for key, value in one.env.items() if key not in ("PYTHONPATH", "RAY_ADDRESS")]
    start = ["env", *variables, f"{place}/bin/ray", "start", "--block", "--disable-usage-stats"]
    start += ["--object-store-memory", "80000000"]
    head = [*start, "--head", "--node-ip-address", hosts.address_of_head, "--port", str(PORT), "--num-cpus", "0"]
    head += ["--temp-dir", str(one.folder / "t"), "--include-dashboard", "false"]
    with ExitStack() as stack:
        stack.enter_context(daemon(hosts.on_head(head), one.folder / "head.out"))
        _wait(lambda: _answers(hosts.address_of_head), one.folder / "head.out")
        for name in hosts.names:  # one after the other: two at once miss a limit of Ray's on a busy machine
            words = [*start, "--address", f"{hosts.address_of_head}:{PORT}", "--node-ip-address", hosts.address(name)]
            said = one.folder / f"{name}.out"
            stack.enter_context(daemon(hosts.argv(name, [*words, "--num-cpus", "4"]), said))
            _wait(lambda said=said: "block forever" in said.read_text(), said)
        yield one


def _answers(address: str) -> bool:
    try:
        socket.create_connection((address, PORT), 1).close()
        return True
    except OSError:
        return False


def _wait(true, log: Path) -> None:
    limit = time.monotonic() + UP_S
    while not true():
        assert time.monotonic() < limit, log.read_text()[-2000:]
        time.sleep(0.2)
