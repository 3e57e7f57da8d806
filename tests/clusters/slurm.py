"""A Slurm on the hosts of `cluster.py`: slurmctld on the head, a slurmd on every host, munge between them."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from cluster import Hosts
from daemon import daemon

NEEDED = ("slurmctld", "slurmd", "srun", "munged")
UP_S = 20.0
CONF = """\
ClusterName=shoal
SlurmctldHost=head({head})
AuthType=auth/munge
AuthInfo=socket={folder}/munge/sock,cred_expire=5
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
SlurmctldPort=7817
SlurmdPort=7818
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/ctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/ctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=pmi2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0
ReturnToService=2
SlurmdTimeout=5
KillWait=5
JobRequeue=1
TCPTimeout=5
MessageTimeout=10
SlurmdParameters=config_overrides
NodeName=DEFAULT CPUs=4 RealMemory=4000 State=UNKNOWN
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def why_not() -> str | None:
    missing = [name for name in NEEDED if shutil.which(name) is None]
    return f"no {', '.join(missing)} here (Debian: apt-get install slurm-wlm munge)" if missing else None


@dataclass
class Slurm:
    hosts: Hosts
    folder: Path
    daemons: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def env(self) -> dict[str, str]:
        return {"SLURM_CONF": str(self.folder / "slurm.conf")}

    def argv(self, *words: str) -> list[str]:
        """The command that runs `words` on the head, where Slurm's own commands work."""
        return self.hosts.on_head(["env", *(f"{key}={value}" for key, value in self.env.items()), *words])

    def shoal(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "shoal", *words]

    def ask(self, *words: str) -> str:
        return subprocess.run(self.argv(*words), capture_output=True, text=True, timeout=30).stdout

    def mend(self) -> None:
        """No job, and all nodes idle."""
        self.ask("scancel", "--user=root")
        self.hosts.mend()
        for name in self.hosts.names:
            if self.daemons[name].poll() is not None:
                self._start(name)
        limit = time.monotonic() + UP_S
        while self.ask("sinfo", "-h", "-N", "-o", "%N %t").split().count("idle") != len(self.hosts.names):
            assert time.monotonic() < limit, self.ask("sinfo", "-N", "-l") + self.ask("squeue")
            time.sleep(0.1)

    def _start(self, name: str) -> None:
        (self.folder / f"spool-{name}").mkdir(exist_ok=True)
        words = ["env", *(f"{key}={value}" for key, value in self.env.items()), "slurmd", "-D", "-N", name]
        self.daemons[name] = self._stack.enter_context(
            daemon(self.hosts.argv(name, words), self.folder / f"{name}.out")
        )

    _stack: ExitStack = field(default_factory=ExitStack)


@contextmanager
def slurm(hosts: Hosts) -> Iterator[Slurm]:
    """Up, with all nodes idle; gone at the end."""
    folder = hosts.folder / "slurm"
    for name in ("", "state", "munge"):
        (folder / name).mkdir()
    for place in (hosts.folder, folder, folder / "munge"):
        place.chmod(0o755)  # munge insists
    with ExitStack() as stack:
        one = Slurm(hosts, folder)
        stack.enter_context(one._stack)
        _write_key(folder / "munge" / "key")
        names = {"key-file": "key", "socket": "sock", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        options = [f"--{option}={folder}/munge/{name}" for option, name in names.items()]
        stack.enter_context(daemon(["munged", "--foreground", "--force", *options], folder / "munged.out"))
        nodes = "\n".join(f"NodeName={name} NodeAddr={hosts.address(name)}" for name in hosts.names)
        conf = CONF.format(head=hosts.address_of_head, folder=folder, nodes=nodes)
        (folder / "slurm.conf").write_text(conf)
        (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")  # finding one out fails where there is none
        stack.enter_context(daemon(one.argv("slurmctld", "-D"), folder / "ctld.out"))
        for name in hosts.names:
            one._start(name)
        one.mend()
        yield one
        one.ask("scancel", "--full", "--user=root")


def _write_key(path: Path) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    with open(descriptor, "wb") as file:
        file.write(secrets.token_bytes(1024))
