"""Manifests as Kubernetes takes them, and a job's life with a stand-in for kubectl. Not run on a real cluster."""

from __future__ import annotations

import json
import shlex
import stat
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from shoal.base.errors import ShoalError, UsageError
from shoal.launch.job import Job, Role
from shoal.launch.launchers.kubernetes import Kubernetes
from shoal.launch.queue import Submitted, submitted

KUBECTL = """\
#!{python}
import json, os, pathlib, sys
import yaml
here = pathlib.Path(os.environ["FAKE_CLUSTER"])
words = sys.argv[1:]
kept = here / "objects.json"
objects = json.loads(kept.read_text()) if kept.exists() else {{}}
KINDS = {{"v1": ("Service", "Secret"), "batch/v1": ("Job",), "jobset.x-k8s.io/v1alpha2": ("JobSet",)}}
def fail(text):
    sys.exit("error: " + text)
if words[0] == "apply":
    place = words[words.index("-f") + 1]
    for one in yaml.safe_load_all(sys.stdin if place == "-" else open(place)):
        if one["kind"] not in KINDS.get(one["apiVersion"], ()):
            fail("no matches for kind " + one["kind"])
        objects[one["kind"].lower() + "/" + one["metadata"]["name"]] = one
    kept.write_text(json.dumps(objects))
elif words[0] == "get" and words[1] == "pods":
    print((here / "pods.json").read_text())
elif words[0] == "get":
    found = objects.get(words[1] + "/" + words[2])
    if found:
        looks = here / "looks"
        count = int(looks.read_text()) if looks.exists() else 0
        looks.write_text(str(count + 1))
        found["status"] = json.loads((here / "status.json").read_text())[min(count, 1)]
        print(json.dumps(found))
elif words[0] == "logs":
    print("Epoch[0] Validation-accuracy=0.9")
elif words[0] == "delete":
    name = words[words.index("-l") + 1].partition("=")[2]
    kinds = words[1].split(",")
    left = {{key: value for key, value in objects.items() if key.split("/") not in [[kind, name] for kind in kinds]}}
    kept.write_text(json.dumps(left))
else:
    fail("unknown command " + words[0])
"""
DIGITS = ("train", "--run", "/here/run", "digits", "-n", "2", "--launcher", "kubernetes:image=i", "--env", "TOKEN")


def job(run: Path = Path("/here/run"), workers: int = 2, **more: Any) -> Job:
    options: dict[str, Any] = {"words": DIGITS, "given": {"TOKEN": "hunter2"}, **more}
    return Job((Role("worker", workers, ("python",)),), run, id="0123456789abcdef", **options)


def documents(launcher: Kubernetes, **more: Any) -> list[dict[str, Any]]:
    ((_, text),) = launcher.plan(job(**more)).files
    return list(yaml.safe_load_all(text))


def container(document: dict[str, Any]) -> dict[str, Any]:
    return document["spec"]["template"]["spec"]["containers"][0]


def test_every_pod_runs_the_same_command_and_the_first_leads() -> None:
    service, found = documents(Kubernetes(image="registry/shoal:1", claim="disk", gpus=1, cpu="500m"))
    name = service["metadata"]["name"]
    assert (service["spec"]["clusterIP"], found["spec"]["completionMode"]) == ("None", "Indexed")
    assert (found["spec"]["completions"], found["spec"]["parallelism"], found["spec"]["backoffLimit"]) == (2, 2, 0)
    assert found["spec"]["template"]["spec"]["subdomain"] == name
    words = shlex.split(container(found)["args"][0].rpartition("exec ")[2])
    assert words[:4] == ["python", "-m", "shoal", "train"] and words[-2:] == ["--env", "TOKEN"]
    assert f"{name}-0.{name}:29400" in words and "$SHOAL_POD" in words and "/shoal/runs/run" in words
    assert not any("launcher" in word or word.startswith("/here") for word in words)
    limits = container(found)["resources"]["limits"]
    assert limits == {"cpu": "500m", "nvidia.com/gpu": "1"}


def test_no_secret_is_in_what_is_written() -> None:
    plan = Kubernetes(image="i").plan(job())
    assert "hunter2" not in plan.text()
    env = {one["name"]: one["valueFrom"] for one in container(documents(Kubernetes(image="i"))[1])["env"]}
    assert set(env) == {"SHOAL_POD", "SHOAL_SECRET", "TOKEN"} and "secretKeyRef" in env["TOKEN"]


def test_words_with_spaces_quotes_and_dollars_arrive_as_they_are() -> None:
    odd = ("launch", "--log-dir", "/here/run", "--", "sh", "-c", "echo $(date) 'a b' \"$HOME\"")
    text = container(documents(Kubernetes(image="i"), words=odd, worlds="all")[1])["args"][0]
    assert "$$(date)" in text and "$(" not in text.replace("$$(", "")
    assert shlex.split(text.replace("$$(", "$("))[-1] == odd[-1]


@pytest.mark.parametrize("kind", ["job", "jobset", "trainjob"])
def test_the_schema_of_kubernetes_takes_it_strictly(kind: str) -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate (108 MB)")
    for found in documents(Kubernetes(image="i", kind=kind, claim="disk", memory="8Gi")):
        if found["kind"] == "JobSet":
            (replicated,) = found["spec"]["replicatedJobs"]
            found = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {}, "spec": replicated["template"]["spec"]}
        elif found["kind"] == "TrainJob":
            trainer = found["spec"]["trainer"]
            pod = {"name": "x", **{key: trainer[key] for key in ("image", "command", "args", "env")}}
            found = {"apiVersion": "v1", "kind": "Pod", "metadata": {}, "spec": {"containers": [pod]}}
        validate.validate(found, "1.31", strict=True)
        found["spec"]["typo"] = 1
        with pytest.raises(validate.ValidationError):
            validate.validate(found, "1.31", strict=True)


def test_the_outer_fields_of_jobset_and_trainjob() -> None:
    (found,) = documents(Kubernetes(image="i", kind="jobset", restarts=3))
    assert set(found["spec"]) == {"network", "failurePolicy", "replicatedJobs"}
    assert found["spec"]["failurePolicy"] == {"maxRestarts": 3}
    name = found["metadata"]["name"]
    assert found["spec"]["network"]["subdomain"] == name
    (replicated,) = found["spec"]["replicatedJobs"]
    assert (
        f"{name}-node-0-0.{name}:29400"
        in replicated["template"]["spec"]["template"]["spec"]["containers"][0]["args"][0]
    )
    (found,) = documents(Kubernetes(image="i", kind="trainjob", cpu=2))
    assert found["spec"]["runtimeRef"] == {"name": "torch-distributed"}
    assert set(found["spec"]["trainer"]) == {
        "image",
        "numNodes",
        "numProcPerNode",
        "command",
        "args",
        "env",
        "resourcesPerNode",
    }


def test_what_cannot_be_is_told() -> None:
    with pytest.raises(UsageError, match="say which image"):
        Kubernetes().plan(job())
    assert Kubernetes(image="i", memory="8 gigs", claim="A_b", mount="x", restarts=1).faults() == [
        ("memory", "expected a quantity as in 500m, 4 or 8Gi, got '8 gigs'"),
        ("claim", "expected lower-case letters, digits and dashes, got 'A_b'"),
        ("mount", "expected a path from /, got 'x'"),
        ("restarts", "only a JobSet starts all pods anew: kind=jobset"),
    ]


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "bin"
    place.mkdir()
    (place / "kubectl").write_text(KUBECTL.format(python=sys.executable))
    (place / "kubectl").chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", str(place), prepend=":")
    monkeypatch.setenv("FAKE_CLUSTER", str(tmp_path))
    (tmp_path / "pods.json").write_text('{"items": []}')
    return tmp_path


def statuses(cluster: Path, end: str, code: int) -> None:
    (cluster / "status.json").write_text(json.dumps([{}, {"conditions": [{"type": end, "status": "True"}]}]))
    state = {"terminated": {"exitCode": code}}
    pod = {"status": {"phase": "Failed", "containerStatuses": [{"state": state}]}}
    (cluster / "pods.json").write_text(json.dumps({"items": [pod]}))


@pytest.mark.parametrize(("end", "code"), [("Complete", 0), ("Failed", 75)])
def test_a_job_s_life(cluster: Path, capfd: pytest.CaptureFixture[str], end: str, code: int) -> None:
    statuses(cluster, end, code)
    launcher = Kubernetes(image="i")
    run = cluster / "run"
    run.mkdir()
    handle = launcher.start(launcher.plan(job(run)))
    assert isinstance(handle, Submitted) and handle.wait(30).exit_code == code
    assert capfd.readouterr().out == "Epoch[0] Validation-accuracy=0.9\n"
    objects = json.loads((cluster / "objects.json").read_text())
    secret = objects[next(key for key in objects if key.startswith("secret/"))]
    assert secret["stringData"]["TOKEN"] == "hunter2" and len(secret["stringData"]["SHOAL_SECRET"]) == 64
    assert "hunter2" not in (run / "manifests.yaml").read_text()
    queue, name = submitted(handle._run) or pytest.fail("not noted")
    queue.cancel(name)
    assert json.loads((cluster / "objects.json").read_text()) == {}
    assert queue.look(name).word == "CANCELLED"


def test_what_kubectl_refuses_leaves_nothing(cluster: Path) -> None:
    launcher = Kubernetes(image="i", kind="trainjob")
    (cluster / "run").mkdir()
    with pytest.raises(ShoalError, match="no matches for kind TrainJob"):
        launcher.start(launcher.plan(job(cluster / "run")))
    assert json.loads((cluster / "objects.json").read_text()) == {}
