"""kubernetes: the same command on every pod of an Indexed Job, a JobSet or a TrainJob; pod 0 leads."""

from __future__ import annotations

import json
import re
import secrets
import shlex
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from shoal.base.errors import DONE, FAILED, ShoalError, UsageError
from shoal.base.run import Run
from shoal.launch.hosts import Host
from shoal.launch.job import Handle, Job, Plan
from shoal.launch.manifests import NAME, QUANTITY, RANK, Pods, manifests, rendezvous
from shoal.launch.plan import plan_of
from shoal.launch.queue import Queue, State, Submitted
from shoal.launch.script import ask, write_private

_ENDS = {"Complete": DONE, "Completed": DONE, "Failed": FAILED}
"""Conditions that are an end."""


class Kubernetes(Queue, frozen=True, kw_only=True):
    """Pods that all run this very command, of which the first leads. `kubectl` applies and deletes them."""

    CALLED: ClassVar[str] = "Kubernetes"
    SERVES: ClassVar[bool] = False
    name: Literal["kubernetes"] = "kubernetes"

    image: str | None = None
    """The container image, with Shoal and its Python in it. Needed."""

    kind: Literal["job", "jobset", "trainjob"] = "job"
    """job: an Indexed Job and a headless Service, on any cluster. jobset, trainjob: where their controllers are."""

    nodes: int | None = None
    """Pods. None: as many as -n and --nproc-per-node come to, else one per worker."""

    namespace: str | None = None
    """None: kubectl's own."""

    claim: str | None = None
    """A PersistentVolumeClaim that all pods may write, for runs and data. None: what is trained goes with the pods."""

    mount: str = "/shoal"
    """Where the claim is seen in the pods; runs are below it, in `runs`."""

    cpu: str | int | None = None
    """CPUs of a pod, as Kubernetes writes them: 4, 500m."""

    memory: str | None = None
    """Memory of a pod: 8Gi."""

    gpus: int | None = None
    """GPUs of a pod (nvidia.com/gpu)."""

    restarts: int = 0
    """How often all pods are started anew after a failure (jobset only)."""

    runtime: str = "torch-distributed"
    """The TrainJob's runtime."""

    port: int = 29400
    """Where pod 0 waits for the others."""

    python: str = "python"
    """The interpreter in the image."""

    context: str | None = None
    """kubectl's --context."""

    def fits(self) -> str | None:
        return None if shutil.which("kubectl") else "no `kubectl` on PATH (--dry-run prints the manifests without it)"

    @property
    def submits(self) -> bool:
        return True

    def faults(self) -> list[tuple[str, str]]:
        found = []
        for key in ("cpu", "memory"):
            value = getattr(self, key)
            if value is not None and not QUANTITY.fullmatch(str(value)):
                found.append((key, f"expected a quantity as in 500m, 4 or 8Gi, got {value!r}"))
        for key in ("claim", "namespace"):
            value = getattr(self, key)
            if value is not None and not NAME.fullmatch(value):
                found.append((key, f"expected lower-case letters, digits and dashes, got {value!r}"))
        if not self.mount.startswith("/"):
            found.append(("mount", f"expected a path from /, got {self.mount!r}"))
        if self.restarts and self.kind != "jobset":
            found.append(("restarts", "only a JobSet starts all pods anew: kind=jobset"))
        return found

    def plan(self, job: Job) -> Plan:
        if self.image is None:
            raise UsageError("say which image: --launcher kubernetes:image=REGISTRY/NAME:TAG")
        if any(not re.fullmatch(r"node-\d+", host.text) for host in job.hosts):
            raise UsageError("-H: Kubernetes chooses the hosts; leave it out")
        count = sum(role.count for role in job.roles if role.name == "worker")
        nodes = self.nodes or -(-count // (job.nproc_per_node or 1))
        plan = plan_of(replace(job, hosts=tuple(Host(f"node-{node}") for node in range(nodes))), self.name)
        text = manifests(self._pods(job, len(plan.hosts)))
        place = job.run / "manifests.yaml"
        ways = (
            ("submit, behind a Secret of the same name", self._kubectl("apply", "--validate=strict", "-f", str(place))),
        )
        return replace(plan, files=((str(place), text),), ways=ways)

    def start(self, plan: Plan) -> Handle:
        return Submitted(self, plan)

    def hosts(self) -> tuple[Host, ...]:
        return tuple(Host(f"node-{node}") for node in range(self.nodes or 0))

    def submit(self, plan: Plan) -> str:
        name = called(plan.job)
        ((place, text),) = plan.files
        write_private(Path(place), text)
        values = {"SHOAL_SECRET": secrets.token_hex(32), **plan.job.given}
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "labels": {"shoal/job": name}},
                  "type": "Opaque", "stringData": values}  # fmt: skip
        ask(self._kubectl("apply", "-f", "-"), said=json.dumps(secret))
        try:
            ask(plan.ways[0][1])
        except ShoalError:
            with suppress(ShoalError):
                self.cancel(name)
            raise
        return name

    def look(self, number: str) -> State:
        said = json.loads(ask(self._kubectl("get", self.kind, number, "-o", "json", "--ignore-not-found")) or "{}")
        if not said:
            return State("CANCELLED", "it is no longer there", FAILED)
        status = said.get("status", {})
        for condition in status.get("conditions", []):
            if condition.get("status") == "True" and condition.get("type") in _ENDS:
                code = _ENDS[condition["type"]]
                return State(condition["type"], condition.get("reason", ""), code and self._exit_code(number))
        pods = self._of_pods(number)
        phases = [pod.get("status", {}).get("phase", "Pending") for pod in pods]
        running = phases.count("Running") + phases.count("Succeeded")
        return State(
            "Running" if phases and running == len(phases) else "Pending", why_pending(pods), waits=not running
        )

    def output(self, run: Run, number: str) -> tuple[Path, Path]:
        """The first pod's, fetched anew."""
        out, err = super().output(run, number)
        with suppress(ShoalError):
            label = "batch.kubernetes.io/job-completion-index=0"
            text = ask(self._kubectl("logs", "-l", f"shoal/job={number},{label}", "--tail=-1"))
            out.parent.mkdir(parents=True, exist_ok=True)
            out.write_text(text + "\n" * bool(text))
        return out, err

    def cancel(self, number: str) -> None:
        kinds = f"{self.kind},service,secret"
        ask(self._kubectl("delete", kinds, "-l", f"shoal/job={number}", "--ignore-not-found", "--wait=false"))

    def _pods(self, job: Job, count: int) -> Pods:
        name = called(job)
        folder = f"{self.mount.rstrip('/')}/runs/{job.run.name}"
        words = [folder if word == str(job.run.absolute()) else word for word in job.words]
        inside = words.index("--") if "--" in words else len(words)
        hands = ["--num-nodes", str(count), "--rendezvous", f"{rendezvous(self.kind, name)}:{self.port}"]
        kept = without_launcher(words[:inside])
        told = [kept[0], *hands, "--secret-file", "/dev/shm/shoal-secret"] if count > 1 else [kept[0]]
        command = shlex.join((self.python, "-m", "shoal", *told)) + (f' --node-rank "${RANK}"' if count > 1 else "")
        command += " " + shlex.join([*kept[1:], *words[inside:]])
        keep = 'umask 077 && printf %s "$SHOAL_SECRET" > /dev/shm/shoal-secret && unset SHOAL_SECRET && '
        resources: dict[str, Any] = {"cpu": self.cpu, "memory": self.memory, "nvidia.com/gpu": self.gpus}
        return Pods(
            name=name,
            kind=self.kind,
            count=count,
            image=self.image or "",
            script=f"{keep}exec {command}",
            variables=tuple(job.given),
            resources={key: str(value) for key, value in resources.items() if value is not None},
            claim=self.claim,
            mount=self.mount,
            namespace=self.namespace,
            grace_s=int(job.grace_s) + 10,
            restarts=self.restarts,
            runtime=self.runtime,
        )

    def _kubectl(self, *words: str) -> tuple[str, ...]:
        where = [f"--context={self.context}"] if self.context else []
        where += [f"--namespace={self.namespace}"] if self.namespace else []
        return ("kubectl", *where, *words)

    def _of_pods(self, number: str) -> list[Mapping[str, Any]]:
        return json.loads(ask(self._kubectl("get", "pods", "-l", f"shoal/job={number}", "-o", "json")))["items"]

    def _exit_code(self, number: str) -> int:
        with suppress(ShoalError, KeyError, ValueError):
            for pod in self._of_pods(number):
                for container in pod["status"].get("containerStatuses", []):
                    if code := container["state"].get("terminated", {}).get("exitCode"):
                        return int(code)
        return FAILED


def called(job: Job) -> str:
    """The job's name there: a label of DNS, with room for what controllers put behind it."""
    plain = re.sub(r"[^a-z0-9]+", "-", job.run.name.lower()).strip("-")[:30].strip("-")
    return f"shoal-{plain}-{job.id[:6]}" if plain else f"shoal-{job.id[:6]}"


def without_launcher(words: list[str]) -> list[str]:
    """`words` without --launcher: inside, every pod is started with its number in the job."""
    kept: list[str] = []
    taken = iter(words)
    for word in taken:
        if word == "--launcher":
            next(taken, None)
        elif not word.startswith("--launcher="):
            kept.append(word)
    return kept


def why_pending(pods: list[Mapping[str, Any]]) -> str:
    """What the scheduler or the kubelet says of the first pod that does not run."""
    for pod in pods:
        status = pod.get("status", {})
        for container in status.get("containerStatuses", []):
            if waiting := container.get("state", {}).get("waiting"):
                return waiting.get("message") or waiting.get("reason", "")
        for condition in status.get("conditions", []):
            if condition.get("status") == "False" and condition.get("message"):
                return condition["message"]
    return ""
