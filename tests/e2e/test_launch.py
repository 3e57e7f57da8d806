"""`shoal launch` with whole programs: torch.distributed, roles as MXNet's, and such as go wrong."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lag import Lag

TORCH = """
import os
import torch
import torch.distributed as dist
dist.init_process_group("gloo")  # env://, as under torchrun
total = torch.ones(1) * (dist.get_rank() + 1)
dist.all_reduce(total)
print(f"rank {dist.get_rank()} of {dist.get_world_size()}: sum {total.item():.0f}", flush=True)
dist.barrier()
dist.destroy_process_group()
"""

# A parameter server in the small, found by DMLC_* alone and with MXNet's division of labour: one command for all roles;
# the scheduler is the meeting point, tells workers where the servers are, and ends when all workers are done.
ROLES = """
import json, os, socket, sys
role, workers, servers = os.environ["DMLC_ROLE"], int(os.environ["DMLC_NUM_WORKER"]), int(os.environ["DMLC_NUM_SERVER"])
root = (os.environ["DMLC_PS_ROOT_URI"], int(os.environ["DMLC_PS_ROOT_PORT"]))
def connected(place):
    while True:
        try:
            return socket.create_connection(place).makefile("rw")
        except ConnectionRefusedError:
            pass
def say(peer, **what):
    peer.write(json.dumps(what) + "\\n")
    peer.flush()
hear = lambda peer: json.loads(peer.readline())
if role == "scheduler":
    listening = socket.create_server(root)
    peers = [listening.accept()[0].makefile("rw") for _ in range(workers + servers)]
    told = [hear(peer) for peer in peers]
    addresses = [what["address"] for what in told if what["role"] == "server"]
    for peer in peers:
        say(peer, servers=addresses)
    for peer in peers:
        assert hear(peer)["done"]
    print("all done", flush=True)
elif role == "server":
    listening = socket.create_server((os.environ["DMLC_NODE_HOST"], 0))
    scheduler = connected(root)
    say(scheduler, role=role, address=listening.getsockname())
    hear(scheduler)
    pushed = []
    for _ in range(workers):
        peer = listening.accept()[0].makefile("rw")
        pushed.append((peer, hear(peer)["push"]))
    for peer, _ in pushed:
        say(peer, pull=sum(value for _, value in pushed))
    say(scheduler, done=True)
else:
    scheduler = connected(root)
    say(scheduler, role=role)
    pulled = []
    for place in hear(scheduler)["servers"]:
        peer = connected(tuple(place))
        say(peer, push=10 ** int(os.environ["DMLC_WORKER_ID"]))
        pulled.append(hear(peer)["pull"])
    say(scheduler, done=True)
    print(f"worker {os.environ['DMLC_WORKER_ID']} pulled {pulled}", flush=True)
"""


def launch(folder: Path, *words: str, code: str | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    """`shoal launch --log-dir FOLDER/logs WORDS -- python SCRIPT`."""
    argv = [sys.executable, "-m", "shoal", "launch", "--log-dir", str(folder / "run"), *words]
    if code is not None:
        (folder / "script.py").write_text(code)
        argv += ["--", sys.executable, str(folder / "script.py")]
    return subprocess.run(argv, capture_output=True, text=True, cwd=folder, env={**os.environ, **env})


def logs(folder: Path) -> dict[str, str]:
    return {path.stem: path.read_text() for path in sorted((folder / "run" / "logs").iterdir())}


def test_a_plain_torch_distributed_script(tmp_path: Path) -> None:
    done = launch(tmp_path, "-n", "2", code=TORCH, OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr
    assert "rank 0 of 2: sum 3\n" in done.stderr
    assert "rank 1 of 2: sum 3\n" in logs(tmp_path)["worker-1"]


def test_roles_as_mxnets_find_each_other(tmp_path: Path) -> None:
    """A small script acts as MXNet's scheduler, servers and workers, by DMLC_* alone: MXNet's last release wants an old
    numpy, so it is not installed beside Shoal."""
    done = launch(tmp_path, "-n", "3", "-s", "2", code=ROLES)
    assert done.returncode == 0, done.stderr
    assert "worker 0 pulled [111, 111]" in done.stderr
    told = logs(tmp_path)
    assert sorted(told) == ["scheduler-0", "server-0", "server-1", "worker-0", "worker-1", "worker-2"]
    assert "all done" in told["scheduler-0"] and "worker 2 pulled [111, 111]" in told["worker-2"]


MXNET = """
import mxnet
store = mxnet.kv.create("dist_sync")  # never returns in servers and the scheduler
store.init("w", mxnet.nd.zeros((2, 3)))
store.push("w", mxnet.nd.ones((2, 3)) * (store.rank + 1))
store._barrier()
pulled = mxnet.nd.zeros((2, 3))
store.pull("w", pulled)
print(f"rank {store.rank} of {store.num_workers} pulled {pulled.asnumpy().sum():.0f}", flush=True)
"""


@pytest.mark.skipif("SHOAL_TEST_MXNET" not in os.environ, reason="SHOAL_TEST_MXNET names no interpreter with MXNet")
def test_mxnet_itself(tmp_path: Path) -> None:
    """Its own scheduler, servers and workers; in an environment of its own (mxnet 1.9.1, numpy 1.23.5, Python 3.11)."""
    (tmp_path / "script.py").write_text(MXNET)
    command = ("--", os.environ["SHOAL_TEST_MXNET"], "script.py")
    done = launch(tmp_path, "-n", "2", "-s", "2", *command)
    assert done.returncode == 0, done.stderr
    assert {log.splitlines()[-1] for name, log in logs(tmp_path).items() if name.startswith("worker")} == {
        "rank 0 of 2 pulled 18",
        "rank 1 of 2 pulled 18",
    }


def test_shoal_itself_is_a_worker_of_it(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "shoal", "launch", "-n", "2", "--log-dir", str(tmp_path / "launched"), "--"]
    argv += [sys.executable, "-m", "shoal", "train", "digits", "length=4st", "--run", str(tmp_path / "run")]
    done = subprocess.run(argv, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    start = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[0])
    assert start["num_ranks"] == 2


def test_variables_that_are_given(tmp_path: Path) -> None:
    code = "import os; print([os.environ.get(name) for name in ('ONE', 'TWO', 'RANK')], flush=True)"
    done = launch(tmp_path, "--env", "ONE=1 a=b", "--env", "TWO", code=code, TWO="two", RANK="77", WORLD_SIZE="99")
    assert "['1 a=b', 'two', '0']" in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--env", "1X=2"), "--env '1X': no name of a variable; expected --env KEY=VALUE or --env KEY"),
        (("--env", "NOT_SET_ANYWHERE"), "--env NOT_SET_ANYWHERE: not set here; give it a value"),
        (("-n", "3", "--nproc-per-node", "2"), "3 workers for 2 slots (localhost: 2); ask for fewer with -n"),
        (("--launcher", "locl"), "no launcher called 'locl'; did you mean 'local'?"),
        (("--launcher", "local", "-H", "nowhere"), "launcher local starts processes on this host only, not on nowhere"),
        (("-H", "a,b", "--ips", "c"), "-H and --ips both say which hosts; give one of them"),
        (("--ports", "9-1"), "--ports 9-1: expected a range as in 5000-5100"),
    ],
)
def test_wrong_usage(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    done = launch(tmp_path, *words, code="print()")
    assert done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()


def test_a_secret_given_by_env_is_not_printed(tmp_path: Path) -> None:
    done = launch(tmp_path, "--env", "9=hunter2", code="print()")
    assert done.returncode == 2 and "hunter2" not in done.stdout + done.stderr


def test_no_log_dir(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file is in the way")
    done = launch(tmp_path, code="print()")
    assert done.returncode == 2
    assert done.stderr.startswith(f"shoal: --log-dir {tmp_path}/run: cannot be made (") and done.stderr.count("\n") == 1


@pytest.fixture
def powerless() -> list[str]:
    """What runs a command for which the permissions of files hold, as they do not for root."""
    if os.geteuid():
        return []
    words = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]
    if shutil.which("setpriv") is None or subprocess.run([*words, "true"], capture_output=True).returncode:
        pytest.skip("root may write everywhere, and no setpriv here takes that right away")
    return words


@pytest.mark.parametrize(
    ("place", "code", "said"),
    [
        (".", 2, "shoal: --log-dir {run}: cannot be made (Permission denied)"),
        ("run", 2, "shoal: --log-dir {run}: not writable (Permission denied)"),
        ("run/logs", 1, "shoal: log {run}/logs/worker-0.log: cannot be opened (Permission denied)"),
    ],
)
def test_no_permission_for_the_log_dir(tmp_path: Path, powerless: list[str], place: str, code: int, said: str) -> None:
    run = tmp_path / "run"
    (tmp_path / place).mkdir(parents=True, exist_ok=True)
    (tmp_path / place).chmod(0o555)
    argv = [*powerless, sys.executable, "-m", "shoal", "launch", "--log-dir", str(run), "--", "true"]
    try:
        done = subprocess.run(argv, capture_output=True, text=True)
    finally:
        (tmp_path / place).chmod(0o755)
    assert (done.returncode, done.stderr.splitlines()) == (code, [said.format(run=run)])


def test_a_working_directory_that_is_given(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    done = launch(tmp_path, "--workdir", "there", "--", "pwd")
    assert (done.returncode, done.stderr.splitlines()) == (0, [f"{tmp_path}/there"])
    done = launch(tmp_path, "--workdir", "none", "--", "pwd")
    assert done.returncode == 1
    assert f"cannot start 'pwd': no folder {tmp_path}/none here" in done.stderr


def test_who_ignores_sigterm_is_killed_after_the_grace(tmp_path: Path, lag: Lag) -> None:
    code = "trap '' TERM; touch up; sleep 60 & wait; sleep 60"
    argv = [sys.executable, "-m", "shoal", "launch", "--grace", "2s", "--log-dir", str(tmp_path / "run")]
    process = subprocess.Popen([*argv, "--", "sh", "-c", code], cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    while not (tmp_path / "up").exists():
        assert process.poll() is None
        time.sleep(0.02)
    process.terminate()
    began = lag.begin()
    _, said = process.communicate(timeout=30)
    assert 1.9 < time.monotonic() - began < lag.allows(5)
    assert process.returncode == 75
    assert said.splitlines()[-1] == "killed by the agent, for it did not end when it was told to: worker 0"


def test_a_command_that_is_not_there(tmp_path: Path) -> None:
    done = launch(tmp_path, "-n", "2", "--", "/none/program", "x")
    assert done.returncode == 1
    assert "/none/program" in done.stderr and "No such file" in done.stderr and "Traceback" not in done.stderr


def test_who_fails_first_is_told_last(tmp_path: Path) -> None:
    code = """
import os, sys, time
if os.environ["RANK"] == "1":
    print("the disk of the moon is full", flush=True)
    sys.exit(3)
time.sleep(60)
"""
    done = launch(tmp_path, "-n", "3", code=code)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-3:] == [
        "worker 1 failed first: exit 3",
        "the disk of the moon is full",
        f"log: {tmp_path}/run/logs/worker-1.log",
    ]


def test_a_restart_is_counted_where_programs_look_for_it(tmp_path: Path) -> None:
    code = """
import os, sys
names = ("TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS", "DMLC_NUM_ATTEMPT")
print("restart", *(os.environ.get(name) for name in names), flush=True)
sys.exit(os.environ.get(names[0], "2") != "2")
"""
    done = launch(tmp_path, "-n", "1", "-s", "1", "--max-restarts", "3", code=code)
    assert done.returncode == 0, done.stderr
    assert "restart 2 3 2\n" in logs(tmp_path)["worker-0"]


def test_dry_run_starts_nothing(tmp_path: Path) -> None:
    done = launch(tmp_path, "-n", "1", "--dry-run", "--", "touch", str(tmp_path / "touched"))
    assert done.returncode == 0 and f"touch {tmp_path}/touched" in done.stdout and "MASTER_PORT" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_hosts_of_the_old_cloud_template(tmp_path: Path) -> None:
    (tmp_path / "workers").write_text("deeplearning-worker1\ndeeplearning-worker2\n")
    template = {"DEEPLEARNING_WORKERS_PATH": str(tmp_path / "workers"), "DEEPLEARNING_WORKERS_COUNT": "2"}
    done = launch(tmp_path, "--dry-run", "--", "true", DEEPLEARNING_WORKER_GPU_COUNT="2", **template)
    assert done.returncode == 0 and "launcher: ssh\n" in done.stdout and "processes: 4\n" in done.stdout
    assert "deeplearning-worker2 worker-3\n" in done.stdout
    done = launch(tmp_path, "-n", "5", "--dry-run", "--", "true", DEEPLEARNING_WORKER_GPU_COUNT="2", **template)
    assert done.returncode == 2 and "5 workers for 4 slots" in done.stderr


def test_the_commands_own_options_are_its_own(tmp_path: Path) -> None:
    done = launch(
        tmp_path, "-n", "1", "--", sys.executable, "-c", "import sys; print(sys.argv[1:])", "-n", "9", "--env"
    )
    assert "['-n', '9', '--env']" in done.stderr
