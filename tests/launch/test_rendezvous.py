"""Where workers meet, and the environment they find."""

from __future__ import annotations

import os
import signal
import socket
import sys
from pathlib import Path

import pytest
from tiny import SLEEP, log, run

from shoal.base.errors import UsageError


def test_first_worker_accepts_on_the_socket_it_was_given(tmp_path: Path) -> None:
    accepting = """
        import socket
        peer, _ = socket.socket(fileno=int(os.environ['SHOAL_LISTEN_FD'])).accept()
        print(peer.recv(10).decode())
    """
    calling = """
        import socket
        assert 'SHOAL_LISTEN_FD' not in os.environ
        host, port = os.environ['SHOAL_RENDEZVOUS'].split(':')
        socket.create_connection((host, int(port))).sendall(b'hello')
    """
    assert run(tmp_path, accepting, calling).lines == ()
    assert log(tmp_path, 0) == "hello\n"


def test_rendezvous_takes_the_first_free_port_of_the_range(tmp_path: Path) -> None:
    for _ in range(20):  # until the port after a taken one is free
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            try:
                socket.create_server(("127.0.0.1", port + 1)).close()
            except OSError:
                continue
            run(tmp_path, "print(os.environ['SHOAL_RENDEZVOUS'])", ports=range(port, port + 2))
            assert log(tmp_path, 0) == f"127.0.0.1:{port + 1}\n"
            return


def test_no_free_port_is_wrong_usage_and_starts_nothing(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGINT)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"no free port in {port}-{port}"):
            run(tmp_path, SLEEP, ports=range(port, port + 1))
    assert list(tmp_path.iterdir()) == []
    assert signal.getsignal(signal.SIGINT) == before


def test_environment_is_inherited_but_for_other_worlds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "MASTER_ADDR", "SHOAL_RANK", "SHOAL_LISTEN_FD", "DMLC_ROLE", "OTHER_RANK"):
        monkeypatch.setenv(name, "7")
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    names = ("RANK", "MASTER_ADDR", "SHOAL_RANK", "DMLC_ROLE", "OTHER_RANK", "GLOO_SOCKET_IFNAME", "PYTHONUNBUFFERED")
    told = f"print(*(os.environ.get(name) for name in {names})); print(os.getppid() != {os.getpid()})"
    run(tmp_path, f"{told}; print(sys.stdin.read() == '')")
    gloo = "lo" if sys.platform == "linux" else "None"
    assert log(tmp_path, 0) == f"None None None None 7 {gloo} 1\nTrue\nTrue\n"
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth7")
    run(tmp_path / "2", "print(os.environ['GLOO_SOCKET_IFNAME'])")
    assert log(tmp_path / "2", 0) == "eth7\n"
