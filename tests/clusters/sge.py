"""A Grid Engine on the hosts of `cluster.py`: its qmaster on the head, an execd on every host, a root of its own."""

from __future__ import annotations

import os
import re
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

MASTER, EXECD, LIB = "/usr/sbin/sge_qmaster", "/usr/sbin/sge_execd", "/usr/lib/gridengine"
SHARE = Path("/usr/share/gridengine")
UP_S = 40.0
PE = """\
pe_name            shoal
slots              999
user_lists         NONE
xuser_lists        NONE
start_proc_args    NONE
stop_proc_args     NONE
allocation_rule    $round_robin
control_slaves     TRUE
job_is_first_task  FALSE
urgency_slots      min
accounting_summary FALSE
qsort_args         NONE
"""


def why_not() -> str | None:
    missing = [path for path in (MASTER, EXECD, f"{LIB}/spoolinit") if not os.path.exists(path)]
    missing += [] if shutil.which("qsub") else ["qsub"]
    packages = "gridengine-master gridengine-exec gridengine-client"
    return f"no {', '.join(missing)} here (Debian: apt-get install {packages})" if missing else None


@dataclass
class Sge:
    hosts: Hosts
    folder: Path
    stack: ExitStack
    daemons: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def env(self) -> dict[str, str]:
        return {
            "SGE_ROOT": str(self.folder),
            "SGE_CELL": "default",
            "SGE_QMASTER_PORT": "6544",
            "SGE_EXECD_PORT": "6545",
        }

    def argv(self, *words: str) -> list[str]:
        """The command that runs `words` on the head, where Grid Engine's own commands work."""
        return self.hosts.on_head(["env", *(f"{key}={value}" for key, value in self.env.items()), *words])

    def shoal(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "shoal", *words]

    def ask(self, *words: str) -> str:
        return subprocess.run(self.argv(*words), capture_output=True, text=True, timeout=30).stdout

    def mend(self) -> None:
        self.ask("qdel", "-u", "*")
        self.hosts.mend()
        for name in self.hosts.names:
            if name not in self.daemons or self.daemons[name].poll() is not None:
                words = ["env", "SGE_ND=1", *(f"{key}={value}" for key, value in self.env.items()), EXECD]
                started = daemon(self.hosts.argv(name, words), self.folder / f"{name}.out")
                self.daemons[name] = self.stack.enter_context(started)
        limit = time.monotonic() + UP_S
        while self.ask("qstat", "-u", "*") or self._well() < len(self.hosts.names):
            assert time.monotonic() < limit, self.ask("qstat", "-f")
            time.sleep(0.3)

    def _well(self) -> int:
        """Queues of hosts without a state that says what is wrong."""
        lines = [line.split() for line in self.ask("qstat", "-f").splitlines()]
        return len([words for words in lines if words[0].startswith("all.q@") and len(words) == 5])


@contextmanager
def sge(hosts: Hosts) -> Iterator[Sge]:
    """Up, with a queue of 4 slots on every host and the parallel environment `shoal`; gone at the end."""
    folder = hosts.folder / "sge"
    stack = ExitStack()
    one = Sge(hosts, folder, stack)
    hosts.folder.chmod(0o755)
    for name in ("default/common", "spool/qmaster/job_scripts", "spooldb", "execd"):
        (folder / name).mkdir(parents=True)
    for name in ("bin", "lib", "util", "utilbin"):
        (folder / name).symlink_to(f"/var/lib/gridengine/{name}")
    old = "/var/spool/gridengine"
    bootstrap = (SHARE / "default-bootstrap").read_text().replace(f"{old}/spooldb", f"{folder}/spooldb")
    bootstrap = bootstrap.replace(f"{old}/qmaster", f"{folder}/spool/qmaster").replace("sgeadmin", "root")
    (folder / "default/common/bootstrap").write_text(bootstrap)
    (folder / "default/common/act_qmaster").write_text("head\n")
    conf = (SHARE / "default-configuration").read_text().replace(f"{old}/execd", f"{folder}/execd")
    conf = changed(conf, min_uid="0", min_gid="0", load_report_time="00:00:02", max_unheard="00:00:10")
    conf = conf.replace("reporting=false", "reporting=false accounting_flush_time=00:00:00")
    (folder / "conf").write_text(conf)
    one.ask(f"{LIB}/spoolinit", "berkeleydb", "libspoolb", str(folder / "spooldb"), "init")
    for what, path in (("configuration", folder / "conf"), ("complexes", SHARE / "util/resources/centry"),
                       ("usersets", SHARE / "util/resources/usersets"), ("managers", "root")):  # fmt: skip
        one.ask(f"{LIB}/spooldefaults", what, str(path))
    with stack:
        stack.enter_context(daemon(one.argv("env", "SGE_ND=1", MASTER), folder / "qmaster.out"))
        wait_for(lambda: one.ask("qconf", "-sh"), "no qmaster: " + str(folder))
        for name in hosts.names:
            one.ask("qconf", "-ah", name)
            one.ask("qconf", "-as", name)
        one.ask("qconf", "-as", "head")
        (folder / "group").write_text(f"group_name @allhosts\nhostlist {' '.join(hosts.names)}\n")
        one.ask("qconf", "-Ahgrp", str(folder / "group"))
        (folder / "pe").write_text(PE)
        one.ask("qconf", "-Ap", str(folder / "pe"))
        queue = changed(one.ask("qconf", "-sq"), qname="all.q", hostlist="@allhosts", pe_list="shoal", slots="4",
                        shell="/bin/sh", load_thresholds="NONE", rerun="TRUE")  # fmt: skip
        (folder / "queue").write_text(queue)
        one.ask("qconf", "-Aq", str(folder / "queue"))
        swift = {"schedule_interval": "0:0:1", "flush_submit_sec": "1", "flush_finish_sec": "1"}
        schedule = changed(one.ask("qconf", "-ssconf"), **swift, job_load_adjustments="NONE")
        (folder / "schedule").write_text(schedule)
        one.ask("qconf", "-Msconf", str(folder / "schedule"))
        one.mend()
        yield one
        one.ask("qdel", "-f", "-u", "*")


def changed(text: str, **values: str) -> str:
    """A configuration with other values."""
    for key, value in values.items():
        text = re.sub(rf"^({key}\s+).*$", lambda found, value=value: found[1] + value, text, flags=re.MULTILINE)
    return text


def wait_for(true, what: str) -> None:
    limit = time.monotonic() + UP_S
    while not true():
        assert time.monotonic() < limit, what
        time.sleep(0.1)
