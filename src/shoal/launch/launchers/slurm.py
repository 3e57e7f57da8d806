"""slurm: srun starts the agents inside an allocation; from outside, sbatch takes the whole job."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Literal

from shoal.base.errors import FAILED, INTERRUPTED, REQUEUE, UsageError
from shoal.base.run import Run
from shoal.launch.hosts import Host
from shoal.launch.job import Handle, Job, Outcome, Plan
from shoal.launch.nodelist import expand_names, expand_numbers
from shoal.launch.plan import plan_of
from shoal.launch.queue import Queue, State, Submitted
from shoal.launch.script import ask, script, write_private
from shoal.launch.summon import Summoned, agent_argv, summon

_ENDED = {"CANCELLED": INTERRUPTED, "FAILED": FAILED, "TIMEOUT": FAILED, "NODE_FAIL": FAILED, "OUT_OF_MEMORY": FAILED,
          "BOOT_FAIL": FAILED, "DEADLINE": FAILED, "PREEMPTED": REQUEUE}  # fmt: skip
"""Exit codes of jobs that did not come to their end."""
_FIELD = re.compile(r"(\w+)=(\S*)")


class Slurm(Queue, frozen=True, kw_only=True):
    """Inside an allocation one `srun` starts the agents; outside, `sbatch` submits this very command."""

    CALLED: ClassVar[str] = "Slurm"
    name: Literal["slurm"] = "slurm"

    nodes: int | None = None
    """Nodes to ask for. None: as many as -n and --nproc-per-node come to, else one."""

    partition: str | None = None
    """sbatch's --partition. None: the site's own."""

    account: str | None = None
    """sbatch's --account."""

    time: int | str | None = None
    """The time limit, as sbatch takes it: minutes, or H:MM:SS. None: the partition's."""

    cpus_per_worker: int | None = None
    """CPUs for each worker. None: Slurm's own (one)."""

    gpus_per_worker: int | None = None
    """GPUs for each worker."""

    signal_s: int = 120
    """So many seconds before the time limit all save, and the job goes back into the queue to go on."""

    requeue: bool = True
    """Whether Slurm may put the job back into the queue: at its time limit, when preempted, when a node fails."""

    args: tuple[str, ...] = ()
    """More words for sbatch, or inside an allocation for srun, as --launcher-arg gives them."""

    python: str | None = None
    """The interpreter on the nodes. None: the path of this one."""

    address: str | None = None
    """Address of this host that the nodes reach. None: the one on the route to them."""

    def fits(self) -> str | None:
        program = "sbatch" if self.submits else "srun"
        return None if shutil.which(program) else f"no `{program}` on PATH (Debian: apt-get install slurm-client)"

    @property
    def submits(self) -> bool:
        return "SLURM_JOB_ID" not in os.environ

    def hosts(self) -> tuple[Host, ...]:
        if self.submits:
            return tuple(Host(f"node-{node}") for node in range(self.nodes or 0))
        names = expand_names(os.environ.get("SLURM_JOB_NODELIST", ""))
        tasks = expand_numbers(os.environ.get("SLURM_TASKS_PER_NODE") or f"1(x{len(names)})")
        cpus = expand_numbers(os.environ.get("SLURM_JOB_CPUS_PER_NODE") or f"1(x{len(names)})")
        said = "SLURM_NTASKS" in os.environ or max(tasks, default=1) > 1
        slots = tasks if said and len(tasks) == len(names) else cpus
        return tuple(Host(name, slots=count) for name, count in zip(names, slots, strict=False))

    def plan(self, job: Job) -> Plan:
        return self._submission(job) if self.submits else self._allocated(job)

    def start(self, plan: Plan) -> Handle:
        if self.submits:
            return Submitted(self, plan)
        return Requeueing(summon(plan, self._srun(plan), address=self.address))

    # Inside an allocation

    def _allocated(self, job: Job) -> Plan:
        own = {host.name: host for host in self.hosts()}
        strangers = [host.text for host in job.hosts if host.text not in own]
        if strangers:
            raise UsageError(f"{', '.join(strangers)}: not in this allocation ({', '.join(own)}); leave out -H")
        wanted = {host.name: host for host in job.hosts or own.values()}
        job = replace(job, hosts=tuple(wanted[name] for name in own if name in wanted))
        plan = plan_of(job, self.name)
        return replace(plan, ways=(("agents", self._srun(plan)),))

    def _srun(self, plan: Plan) -> tuple[str, ...]:
        names, count = ",".join(host.name for host in plan.hosts), len(plan.hosts)
        hurry = 0 if plan.job.min_workers else 1  # a job that can do with fewer hosts goes on without one
        words = [f"--nodes={count}", f"--ntasks={count}", "--ntasks-per-node=1", f"--nodelist={names}"]
        words += [f"--kill-on-bad-exit={hurry}", *([] if hurry else ["--no-kill"])]
        # All that the job has, also where a shell of its own (srun --pty) holds it already.
        words += ["--overlap", "--cpu-bind=none", "--mpi=none", "--export=ALL", f"--job-name=shoal-{plan.job.id[:8]}"]
        return ("srun", *words, *self.args, *agent_argv(self.python))

    # From outside

    def _submission(self, job: Job) -> Plan:
        asked = [host.text for host in job.hosts if not host.text.startswith("node-")]
        if asked:
            raise UsageError("-H: Slurm chooses the nodes; to wish for some, --launcher-arg=--nodelist=a,b")
        count = sum(role.count for role in job.roles if role.name == "worker")
        each = job.nproc_per_node or -(-count // (self.nodes or 1))
        nodes = self.nodes or -(-count // each)
        plan = plan_of(replace(job, hosts=tuple(Host(f"node-{node}") for node in range(nodes))), self.name)
        text = script(self.python or sys.executable, job)
        place = Run(job.run).folder / "job.sh"
        return replace(plan, files=((str(place), text),), ways=(("submit", self._sbatch(job, nodes, each, place)),))

    def _sbatch(self, job: Job, nodes: int, each: int, place: Path) -> tuple[str, ...]:
        out, err = (str(path).replace("%", "%%") for path in self.output(Run(job.run.absolute()), "@JOB@"))
        words = [f"--job-name=shoal-{job.run.name}", f"--nodes={nodes}", f"--ntasks-per-node={each}"]
        words += [
            f"--output={out.replace('@JOB@', '%j')}",
            f"--error={err.replace('@JOB@', '%j')}",
            "--open-mode=append",
        ]
        words += [f"--chdir={os.path.abspath(job.workdir or '.')}", f"--signal=B:USR1@{self.signal_s}"]
        words += ["--requeue" if self.requeue else "--no-requeue"]
        asked = {
            "partition": self.partition,
            "account": self.account,
            "time": self.time,
            "cpus-per-task": self.cpus_per_worker,
            "gpus-per-task": self.gpus_per_worker,
        }
        words += [f"--{option}={value}" for option, value in asked.items() if value is not None]
        return ("sbatch", "--parsable", *words, *self.args, str(place))

    def submit(self, plan: Plan) -> str:
        ((place, text),) = plan.files
        write_private(Path(place), text)
        return ask(plan.ways[0][1], {**os.environ, **plan.job.given}).partition(";")[0]

    def look(self, number: str) -> State:
        said = dict(_FIELD.findall(ask(("scontrol", "show", "job", "-o", number))))
        word, reason = said.get("JobState", "?"), said.get("Reason", "None")
        code, _, signum = said.get("ExitCode", "0:0").partition(":")
        ended = None
        if word == "COMPLETED":
            ended = 0
        elif word in _ENDED:
            ended = int(code) if word == "FAILED" and code != "0" else _ENDED[word]
        how = "" if reason == "None" else reason
        if ended and signum not in ("", "0"):
            how = f"signal {signum}"
        return State(word, how, ended, waits=word == "PENDING", restarts=int(said.get("Restarts", "0")))

    def cancel(self, number: str) -> None:
        ask(("scancel", number))


class Requeueing:
    """A Handle on a job in an allocation: told by USR1 that the time limit is near, it goes back into the queue."""

    def __init__(self, handle: Summoned) -> None:
        self._handle = handle

    def wait(self, timeout_s: float | None = None) -> Outcome:
        outcome = self._handle.wait(timeout_s)
        if outcome.exit_code == REQUEUE and signal.SIGUSR1 in self._handle.told:
            number = os.environ["SLURM_JOB_ID"]
            said = dict(_FIELD.findall(ask(("scontrol", "show", "job", "-o", number))))
            if said.get("BatchFlag") == "1" and said.get("Requeue") == "1":
                print(f"Slurm job {number} goes back into the queue, to go on from here", file=sys.stderr, flush=True)
                ask(("scontrol", "requeue", number))
        return outcome

    def status(self) -> dict[str, str]:
        return self._handle.status()

    def cancel(self) -> None:
        self._handle.cancel()
