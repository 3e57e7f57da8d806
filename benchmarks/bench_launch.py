"""How long a start takes over two ssh hosts, against one host alone; what 64 hosts cost the launcher.

The two hosts are namespaces of this machine (tests/clusters), so both starts have the same cores; root and sshd are
needed. The 64 are played by an `ssh` that runs the agent here.
"""

from __future__ import annotations

import os
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from pairs import compare, finish, machine, training, verdict

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "clusters"))

from cluster import Hosts, cluster, why_not

PAIRS, FAKE_HOSTS, RUNS = 5, 64, 5
TRAIN = ("digits", "-n", "4", "length=2st", "strategy.threads=1")
FAKE_SSH = """\
#!/bin/sh
for last; do :; done
SSH_CONNECTION="127.0.0.1 1 127.0.0.1 22" exec sh -c "$last"
"""


def main() -> None:
    print(machine())
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    reason = why_not()
    if reason:
        print(f"ssh hosts: not measured: {reason}")
    else:
        with cluster(2) as hosts:
            two_hosts(hosts)
    fake_hosts()
    finish()


def two_hosts(hosts: Hosts) -> None:
    """From the command to the end of the first step."""
    over = ("-H", ",".join(hosts.names), "--ssh-config", str(hosts.ssh_config))
    training(*TRAIN)  # files into memory
    there, here, ratio, low, high = compare(
        lambda: training(*TRAIN, *over)["first_step_s"], lambda: training(*TRAIN)["first_step_s"], PAIRS
    )
    print(
        f"first step of `shoal train {shlex.join(TRAIN)}`: {there:.2f} s on 2 ssh hosts, {here:.2f} s on this one "
        f"(medians of {PAIRS} pairs); ratio {ratio:.2f}, {low:.2f} to {high:.2f}"
    )
    verdict("start over 2 ssh hosts / here", ratio, "<= 1.5", ratio <= 1.5)


def fake_hosts() -> None:
    """Processor time of the launcher alone, until the last of all processes runs."""
    runs = [_start_fakes() for _ in range(RUNS)]
    used, wall = ([run[index] for run in runs] for index in (0, 1))
    print(
        f"{FAKE_HOSTS} fake hosts: {statistics.median(used):.2f} s of the launcher's processor time, "
        f"{min(used):.2f} to {max(used):.2f}; {statistics.median(wall):.1f} s of wall time (medians of {RUNS})"
    )
    verdict(
        f"{FAKE_HOSTS} fake hosts, s of launcher CPU", statistics.median(used), "<= 3", statistics.median(used) <= 3
    )


def _start_fakes() -> tuple[float, float]:
    with tempfile.TemporaryDirectory() as folder:
        ssh, ready = Path(folder) / "ssh", Path(folder) / "ready"
        ssh.write_text(FAKE_SSH)
        ssh.chmod(0o755)
        ready.mkdir()
        names = ",".join(f"fake{index}" for index in range(FAKE_HOSTS))
        words = ["launch", "-n", str(FAKE_HOSTS), "-H", names, "--log-dir", f"{folder}/run"]
        program = ["sh", "-c", f"touch {ready}/$RANK; exec sleep 600"]
        began = time.perf_counter()
        said = open(f"{folder}/said", "w")  # noqa: SIM115
        launcher = subprocess.Popen(
            [sys.executable, "-m", "shoal", *words, "--", *program],
            env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"},
            stderr=said,
        )
        try:
            while len(list(ready.iterdir())) < FAKE_HOSTS:
                if launcher.poll() is not None or time.perf_counter() - began > 120:
                    raise SystemExit(f"{FAKE_HOSTS} fake hosts did not start:\n{(Path(folder) / 'said').read_text()}")
                time.sleep(0.02)
            wall = time.perf_counter() - began
            user, system = Path(f"/proc/{launcher.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
            used = (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
        finally:
            launcher.send_signal(signal.SIGTERM)
            launcher.wait()
        return used, wall


if __name__ == "__main__":
    main()
