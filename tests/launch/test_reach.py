"""The command that reaches a host, and what is said when it did not; real ssh errors as OpenSSH words them."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.launch.hosts import Host
from shoal.launch.reach import Reach, ask

PYTHON = "/opt/env/bin/python"
REACH = Reach(python=PYTHON, workdir="/work/my code")


def test_the_command() -> None:
    reach = Reach(config="/c", options=("IdentityFile=/k",), connect_s=5, python=PYTHON, workdir="/work/my code")
    assert reach.shoal(Host("node1", user="u", port=2222), "ps", "--json") == (
        "ssh", "-T", "-x", "-a", "-F", "/c", "-o", "IdentityFile=/k", "-o", "BatchMode=yes", "-o", "ControlMaster=no",
        "-o", "ConnectTimeout=5",
        "-p", "2222", "-l", "u", "--", "node1",
        "cd '/work/my code' && exec /opt/env/bin/python -m shoal ps --json",
    )  # fmt: skip
    assert Reach(python=PYTHON).shoal(Host("localhost"), "ps") == (PYTHON, "-m", "shoal", "ps")


@given(
    st.lists(st.text(st.characters(blacklist_characters="\0", blacklist_categories=("Cs",)), max_size=20), min_size=1)
)
def test_every_word_arrives_as_it_was(words: list[str]) -> None:
    """The remote shell reads the line as one that splits it into the very same words."""
    line = Reach().argv(Host("node1"), words)[-1]
    assert shlex.split(line) == ["exec", *words]


@pytest.mark.parametrize(
    ("code", "said", "told"),
    [
        (
            255,
            "ssh: Could not resolve hostname node1: Name or service not known\n",
            "node1:2222: no host of that name; correct it in -H or the hostfile, or add it to ~/.ssh/config",
        ),
        (
            255,
            "@@@@\n@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\n@@@\nHost key verification failed.\n",
            "node1:2222: its host key has changed since it was first seen; "
            "if that is meant to be: ssh-keygen -R '[node1]:2222'",
        ),
        (
            255,
            "No ED25519 host key is known for node1 and you have requested strict checking.\n"
            "Host key verification failed.\n",
            "node1:2222: its host key is not known here; look at it and accept it once: ssh -p 2222 node1 true",
        ),
        (
            255,
            "root@node1: Permission denied (publickey,password).\n",
            "node1:2222: refuses the login; give it your key: ssh-copy-id -p 2222 node1",
        ),
        (
            255,
            "ssh: connect to host node1 port 2222: Connection refused\n",
            "node1:2222: nothing listens at its ssh port; start sshd there, or name the port as in host:2222",
        ),
        (
            255,
            "ssh: connect to host node1 port 2222: No route to host",
            "node1:2222: no route to it; look at its network and its name",
        ),
        (
            127,
            f"bash: line 1: {PYTHON}: No such file or directory\n",
            f"node1:2222: no interpreter {PYTHON} there; install it there, or name another with --python PATH",
        ),
        (
            127,
            f"sh: 1: exec: {PYTHON}: not found\n",
            f"node1:2222: no interpreter {PYTHON} there; install it there, or name another with --python PATH",
        ),
        (
            1,
            "bash: line 1: cd: /work/my code: No such file or directory\n",
            "node1:2222: no folder /work/my code there; make it, or send this one: --sync-dst-dir /work/my code",
        ),
        (
            2,
            "sh: 1: cd: can't cd to /work/my code\n",
            "node1:2222: no folder /work/my code there; make it, or send this one: --sync-dst-dir /work/my code",
        ),
        (
            1,
            f"{PYTHON}: No module named shoal\n",
            f"node1:2222: {PYTHON} has no Shoal there; run there: {PYTHON} -m pip install shoal",
        ),
        (3, "Traceback\nValueError: odd\n", "node1:2222: ValueError: odd"),
        (3, "", "node1:2222: exit 3 without a word"),
        (None, "", "node1:2222: no answer; look whether it is up: ssh -p 2222 node1 true"),
    ],
)
def test_reasons(code: int | None, said: str, told: str) -> None:
    assert REACH.reason(Host("node1", port=2222), code, said) == told


def test_a_real_refusal() -> None:
    """What the installed ssh says where nothing listens."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    host = Host("127.0.0.1", port=port)
    done = subprocess.run(
        Reach(config="/dev/null").shoal(host, "ps"),
        capture_output=True,
        text=True,
        timeout=30,
        stdin=subprocess.DEVNULL,
    )
    assert "nothing listens at its ssh port" in Reach().reason(host, done.returncode, done.stderr)


def test_all_hosts_are_asked_at_once() -> None:
    answers = ask([Host("localhost")] * 3, ["--version"], Reach())
    assert [answer.code for answer in answers] == [0, 0, 0]
    assert all(answer.stdout.startswith("shoal ") and answer.answered_at >= answer.asked_at for answer in answers)
    (missing,) = ask([Host("localhost")], ["ps"], Reach(python="/none/python"))
    assert not missing.ok and "no interpreter /none/python" in Reach(python="/none/python").reason(
        missing.host, missing.code, missing.stderr
    )


def test_the_interpreter_of_this_process_is_used_there() -> None:
    assert json.dumps(sys.executable)[1:-1] in Reach().shoal(Host("node1"), "ps")[-1]
