"""Manifests: what Kubernetes is asked for, as YAML. Pure. Fields are those of batch/v1, jobset.x-k8s.io/v1alpha2 and
trainer.kubeflow.org/v1alpha1."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
QUANTITY = re.compile(r"[0-9]+(\.[0-9]+)?(m|[kMGTPE]i?)?")
RANK = "SHOAL_POD"
"""The variable that holds a pod's number."""
_INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"


@dataclass(frozen=True)
class Pods:
    """So many that are alike but for their number."""

    name: str
    kind: Literal["job", "jobset", "trainjob"]
    count: int
    image: str
    script: str
    """What sh runs in each of them."""
    variables: tuple[str, ...] = ()
    """Names whose values the Secret holds."""
    resources: Mapping[str, str] = field(default_factory=dict)
    claim: str | None = None
    mount: str = "/shoal"
    namespace: str | None = None
    grace_s: int = 70
    """Seconds from the order to stop until they are killed."""
    restarts: int = 0
    runtime: str = "torch-distributed"


def rendezvous(kind: str, name: str) -> str:
    """The name by which the others find pod 0."""
    return f"{name}-0.{name}" if kind == "job" else f"{name}-node-0-0.{name}"


def manifests(pods: Pods) -> str:
    """YAML, a document for each object. The Secret is not among them: it is no text to be kept."""
    import yaml

    made = {"job": _job_and_service, "jobset": _jobset, "trainjob": _trainjob}[pods.kind](pods)
    return yaml.safe_dump_all(made, sort_keys=False, width=1000)


def _job_and_service(pods: Pods) -> list[dict[str, Any]]:
    spec = {
        "clusterIP": "None",
        "selector": {"shoal/job": pods.name},
        "publishNotReadyAddresses": True,  # they look for each other before they are ready
    }
    service = {"apiVersion": "v1", "kind": "Service", "metadata": _metadata(pods), "spec": spec}
    return [service, {"apiVersion": "batch/v1", "kind": "Job", "metadata": _metadata(pods), "spec": _job(pods)}]


def _jobset(pods: Pods) -> list[dict[str, Any]]:
    spec = {
        "network": {"enableDNSHostnames": True, "subdomain": pods.name, "publishNotReadyAddresses": True},
        "failurePolicy": {"maxRestarts": pods.restarts},
        "replicatedJobs": [{"name": "node", "replicas": 1, "template": {"spec": _job(pods)}}],
    }
    return [{"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": _metadata(pods), "spec": spec}]


def _trainjob(pods: Pods) -> list[dict[str, Any]]:
    container = _container(pods)
    trainer: dict[str, Any] = {"image": pods.image, "numNodes": pods.count, "numProcPerNode": 1}
    trainer |= {key: container[key] for key in ("command", "args", "env")}
    if pods.resources:
        trainer["resourcesPerNode"] = container["resources"]
    spec = {"runtimeRef": {"name": pods.runtime}, "labels": {"shoal/job": pods.name}, "trainer": trainer}
    api = "trainer.kubeflow.org/v1alpha1"
    return [{"apiVersion": api, "kind": "TrainJob", "metadata": _metadata(pods), "spec": spec}]


def _job(pods: Pods) -> dict[str, Any]:
    pod: dict[str, Any] = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": pods.grace_s,
        "containers": [_container(pods)],
    }
    if pods.kind == "job":
        pod["subdomain"] = pods.name
    if pods.claim:
        pod["volumes"] = [{"name": "shoal", "persistentVolumeClaim": {"claimName": pods.claim}}]
    return {
        "completionMode": "Indexed",
        "completions": pods.count,
        "parallelism": pods.count,
        "backoffLimit": 0,  # one that fails ends all: the launcher in pod 0 has told why
        "template": {"metadata": {"labels": {"shoal/job": pods.name}}, "spec": pod},
    }


def _container(pods: Pods) -> dict[str, Any]:
    held = {"name": pods.name}
    env: list[dict[str, Any]] = [{"name": RANK, "valueFrom": {"fieldRef": {"fieldPath": _INDEX}}}]
    for name in ("SHOAL_SECRET", *pods.variables):
        env.append({"name": name, "valueFrom": {"secretKeyRef": {**held, "key": name}}})
    made: dict[str, Any] = {
        "name": "shoal",
        "image": pods.image,
        "command": ["sh", "-c"],
        "args": [pods.script.replace("$(", "$$(")],  # else Kubernetes would put variables there
        "env": env,
    }
    if pods.resources:
        made["resources"] = {"requests": dict(pods.resources), "limits": dict(pods.resources)}
    if pods.claim:
        made["volumeMounts"] = [{"name": "shoal", "mountPath": pods.mount}]
    return made


def _metadata(pods: Pods) -> dict[str, Any]:
    where = {"namespace": pods.namespace} if pods.namespace else {}
    return {"name": pods.name, **where, "labels": {"shoal/job": pods.name}}
