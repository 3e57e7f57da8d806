"""The hosts that other tests trust in."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cluster import Hosts, cluster, down, why_not


def test_each_has_its_own_name_address_processes_and_memory(hosts: Hosts) -> None:
    for name in hosts.names:
        told = hosts.ssh(name, "sh", "-c", "hostname; ip -4 -o addr show eth0; ls /dev/shm; ls -d /proc/[0-9]* | wc -l")
        assert told.returncode == 0, told
        hostname, address, *_, processes = told.stdout.splitlines()
        assert hostname == name
        assert hosts.address(name) in address
        assert int(processes) < 20
    assert len({tuple(hosts.pids(name)) for name in hosts.names}) == len(hosts.names)


def test_they_reach_each_other_until_the_cable_is_pulled(hosts: Hosts) -> None:
    first, second = hosts.names[:2]
    probe = ["bash", "-c", f"timeout 1 bash -c 'exec 3<>/dev/tcp/{second}/22'"]
    assert hosts.exec(first, probe, check=False).returncode == 0
    hosts.unplug(second)
    assert hosts.exec(first, probe, check=False).returncode != 0
    hosts.plug(second)
    assert hosts.exec(first, probe, check=False).returncode == 0


def test_off_ends_everything_on_it_at_once(hosts: Hosts) -> None:
    first = hosts.names[0]
    sleeper = subprocess.Popen(hosts.argv(first, ["env", "SHOAL_JOB=feedfeedfeedfeed", "setsid", "sleep", "60"]))
    limit = time.monotonic() + 5
    while not hosts.survivors("feedfeedfeedfeed") and time.monotonic() < limit:
        time.sleep(0.01)
    assert hosts.survivors("feedfeedfeedfeed")
    hosts.off(first)
    sleeper.wait(5)
    assert hosts.survivors("feedfeedfeedfeed") == []
    hosts.on(first)
    assert hosts.ssh(first, "true").returncode == 0


def test_several_live_side_by_side(hosts: Hosts) -> None:
    with cluster(1) as other:
        assert other.number != hosts.number
        assert other.ssh("host1", "hostname").stdout == "host1\n"
        assert hosts.ssh("host1", "hostname").stdout == "host1\n"
    assert _traces(other.number, other.folder) == []


def test_a_killed_test_leaves_nothing(tmp_path: Path) -> None:
    reason = why_not()
    if reason:
        pytest.skip(reason)
    code = "from cluster import *\nwith cluster(1) as hosts: print(hosts.number, hosts.folder, flush=True); input()"
    program = [sys.executable, "-c", code]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    dying = subprocess.Popen(program, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert dying.stdout is not None
    number, folder = dying.stdout.readline().split()
    assert _traces(int(number), Path(folder))
    dying.send_signal(signal.SIGKILL)
    dying.wait()
    limit = time.monotonic() + 20
    while _traces(int(number), Path(folder)) and time.monotonic() < limit:
        time.sleep(0.05)
    assert _traces(int(number), Path(folder)) == []
    down(int(number), Path(folder))  # twice does no harm


def _traces(number: int, folder: Path) -> list[str]:
    """What is left of a cluster."""
    spaces = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout.splitlines()
    left = [space for space in spaces if space.startswith(f"shoal{number}-")]
    left += [device for device in os.listdir("/sys/class/net") if device.startswith((f"shoal{number}v",
                                                                                    f"shoal{number}br"))]  # fmt: skip
    return left + ([str(folder)] if folder.exists() else [])
