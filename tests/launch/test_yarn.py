"""A job with a strict stand-in for YARN's Services API, which does start the containers. Not run on a real YARN."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from shoal.base.errors import ShoalError
from shoal.launch.job import Job, Role
from shoal.launch.launchers.yarn import Yarn

SERVICE = {"name": str, "version": str, "lifetime": str, "queue": str, "components": list}
COMPONENT = {"name": str, "number_of_containers": int, "launch_command": str, "restart_policy": str, "resource": dict,
             "configuration": dict, "placement_policy": dict}  # fmt: skip
RESOURCE = {"cpus": int, "memory": str, "additional": dict}
CONSTRAINT = {"type": str, "scope": str, "target_tags": list}


def check(given: dict[str, Any], known: dict[str, type], optional: tuple[str, ...] = ()) -> None:
    """As a parser that knows these fields alone."""
    for key, value in given.items():
        if not isinstance(value, known.get(key, ())):
            raise ValueError(f"Unrecognized field {key}")
    if missing := [key for key in known if key not in given and key not in optional]:
        raise ValueError(f"{missing[0]} is missing")


class Fake:
    """ResourceManager with the Services API: one service, its containers on this host."""

    def __init__(self) -> None:
        self.posted: dict[str, Any] = {}
        self.deleted: list[str] = []
        self.containers: list[subprocess.Popen[bytes]] = []
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                try:
                    fake.post(json.loads(body))
                    self.answer(202, {})
                except ValueError as error:
                    self.answer(400, {"diagnostics": str(error)})

            def do_GET(self) -> None:
                ended = all(container.poll() is not None for container in fake.containers)
                self.answer(200, {"state": "STOPPED" if ended else "STABLE"})

            def do_DELETE(self) -> None:
                fake.deleted.append(self.path)
                for container in fake.containers:
                    container.terminate()
                self.answer(204, None)

            def answer(self, code: int, body: object) -> None:
                self.send_response(code)
                self.end_headers()
                self.wfile.write(b"" if body is None else json.dumps(body).encode())

            def log_message(self, *args: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"

    def post(self, service: dict[str, Any]) -> None:
        check(service, SERVICE, ("queue",))
        if service.get("queue", "default") != "default":
            raise ValueError(f"queue {service['queue']} is unknown")
        (component,) = service["components"]
        check(component, COMPONENT)
        check(component["resource"], RESOURCE, ("additional",))
        for constraint in component["placement_policy"]["constraints"]:
            check(constraint, CONSTRAINT)
        self.posted = service
        for number in range(component["number_of_containers"]):
            env = dict(component["configuration"]["env"])
            for key, value in env.items():
                env[key] = value.replace("${COMPONENT_INSTANCE_NAME}", f"{component['name']}-{number}")
            words = shlex.split(component["launch_command"])
            self.containers.append(subprocess.Popen(words, env={"PATH": os.environ["PATH"], **env}))


@pytest.fixture
def fake() -> Iterator[Fake]:
    one = Fake()
    yield one
    one.server.shutdown()
    one.server.server_close()
    for container in one.containers:
        container.kill()
        container.wait()


def job(folder: Path, *argv: str) -> Job:
    return Job((Role("worker", 2, argv),), folder / "run", worlds="all", hang_s=None)


def test_a_job_s_life(fake: Fake, tmp_path: Path) -> None:
    launcher = Yarn(url=fake.url)
    outcome = launcher.start(launcher.plan(job(tmp_path, "sh", "-c", "echo $RANK of $WORLD_SIZE; exit 7"))).wait(30)
    assert outcome.exit_code == 1 and any("exit 7" in line for line in outcome.lines), outcome
    logs = [(tmp_path / f"run/logs/worker-{rank}.log").read_text() for rank in range(2)]
    assert logs == ["0 of 2\n", "1 of 2\n"]
    assert "SECRET_FILE" in str(fake.posted) and "SHOAL_HEAD_SECRET'" not in str(fake.posted)
    assert not (tmp_path / "run/.secret").exists()
    assert len(fake.deleted) == 1 and fake.deleted[0].startswith(f"/app/v1/services/{fake.posted['name']}?user.name=")
    assert [container.wait(5) for container in fake.containers] == [0, 0]


def test_what_yarn_refuses_is_told_in_its_own_words(fake: Fake, tmp_path: Path) -> None:
    launcher = Yarn(url=fake.url, queue="gold")
    with pytest.raises(ShoalError, match="HTTP 400: queue gold is unknown"):
        launcher.start(launcher.plan(job(tmp_path, "true")))
    assert not (tmp_path / "run/.secret").exists()
    nobody = Yarn(url="http://127.0.0.1:9")
    with pytest.raises(ShoalError, match="the ResourceManager does not answer"):
        nobody.start(nobody.plan(job(tmp_path, "true")))


def test_what_cannot_be_is_told() -> None:
    assert "--launcher yarn:url=" in (Yarn().fits() or "")
    assert Yarn(url="rm:8088").faults() == [("url", "expected http://HOST:8088, got 'rm:8088'")]
