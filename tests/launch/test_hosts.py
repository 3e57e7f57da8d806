"""Hosts as people name them, and what is said of a name that cannot be."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.base.errors import UsageError
from shoal.launch.hosts import Host, choose_hosts, hosts_from_environment, parse_hosts, read_hostfile


def hostfile(folder: Path, text: str) -> Path:
    path = folder / "hosts.txt"
    path.write_text(text)
    return path


def test_a_list() -> None:
    assert parse_hosts("a,b:2222, user@c,x@[::1]:22,fe80::1") == (
        Host("a"),
        Host("b", port=2222),
        Host("c", user="user"),
        Host("::1", user="x", port=22),
        Host("fe80::1"),
    )


def test_a_hostfile(tmp_path: Path) -> None:
    text = "# the lab\nnode1 slots=4\n\nuser@node2:2222\tslots=2 # new\nnode3\r\n10.0.0.7\n"
    assert read_hostfile(hostfile(tmp_path, text)) == (
        Host("node1", slots=4),
        Host("node2", user="user", port=2222, slots=2),
        Host("node3"),
        Host("10.0.0.7"),
    )


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("node1 slots=four", "slots=four: expected how many workers node1 takes, at least 1"),
        ("node1 slots=0", "at least 1"),
        ("node1 slots=-2", "at least 1"),
        ("node1 slots=٣", "at least 1"),
        ("node1 slots=2 slots=3", "slots is said twice"),
        ("node1 slot=4", "cannot read 'slot=4'; expected 'node1 slots=4'; did you mean 'slots'?"),
        ("node1 4", "cannot read '4'; expected 'node1 slots=4'"),
        ("node1:ssh", "'ssh' in 'node1:ssh' is no port of an ssh server; expected 1 to 65535, as in node1:22"),
        ("node1:0", "no port"),
        ("node1:65536", "no port"),
        ("-oProxyCommand=evil", "'-oProxyCommand=evil' is no host; expected host, host:port or user@host"),
        ("-l@node1", "'-l' is no user's name"),
        ("@node1", "'' is no user's name"),
        ("http://node1", "no port"),
        ("node1;reboot", "is no host"),
        ("[::1", "is no host"),
        ("[::1]22", "is no host"),
        ("first", "first is named in line 1 already; name it once, with slots=N for N workers"),
    ],
)
def test_a_bad_line_is_told_with_file_and_line(tmp_path: Path, line: str, said: str) -> None:
    path = hostfile(tmp_path, f"first\n# comment\n{line}\n")
    with pytest.raises(UsageError) as raised:
        read_hostfile(path)
    assert str(raised.value).startswith(f"{path}:3: ")
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"hostfile .*/none: cannot be read \(No such file"):
        read_hostfile(tmp_path / "none")
    with pytest.raises(UsageError, match="names no host"):
        read_hostfile(hostfile(tmp_path, "# nobody\n\n"))
    (tmp_path / "hosts.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="is no text"):
        read_hostfile(tmp_path / "hosts.txt")


def test_lists_that_are_none() -> None:
    with pytest.raises(UsageError, match="an empty name"):
        parse_hosts("a,,b")
    with pytest.raises(UsageError, match="a is named twice"):
        parse_hosts("a,b,a")
    assert len(parse_hosts("a:22,a:23")) == 2


def test_a_list_or_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = hostfile(tmp_path, "node1\n")
    assert choose_hosts(hosts=str(path)) == choose_hosts(hostfile=str(path)) == (Host("node1"),)
    assert choose_hosts(ips="10.0.0.1,10.0.0.2") == (Host("10.0.0.1"), Host("10.0.0.2"))
    assert choose_hosts(hosts="a", env={"DEEPLEARNING_WORKERS_PATH": "/none"}) == (Host("a"),)
    assert choose_hosts(env={}) == ()
    monkeypatch.chdir(tmp_path)
    assert choose_hosts(hosts="hosts.txt") == (Host("node1"),)
    with pytest.raises(UsageError, match=r"hostfile nowhere: cannot be read"):
        choose_hosts(hosts="./nowhere")
    with pytest.raises(UsageError, match="-H and --ips both say which hosts"):
        choose_hosts(hosts="a", ips="b")


def test_the_old_cloud_template(tmp_path: Path) -> None:
    path = hostfile(tmp_path, "deeplearning-worker1\ndeeplearning-worker2 slots=2\ndeeplearning-worker3\n")
    env = {
        "DEEPLEARNING_WORKERS_PATH": str(path),
        "DEEPLEARNING_WORKERS_COUNT": "2",
        "DEEPLEARNING_WORKER_GPU_COUNT": "8",
    }
    assert hosts_from_environment({}) == ()
    assert hosts_from_environment(env) == (Host("deeplearning-worker1", slots=8), Host("deeplearning-worker2", slots=2))
    # machines without a GPU say 0: then nothing is known of their slots
    assert hosts_from_environment({**env, "DEEPLEARNING_WORKER_GPU_COUNT": "0"})[0].slots is None
    with pytest.raises(UsageError, match="DEEPLEARNING_WORKERS_COUNT: 4 of 3 hosts"):
        hosts_from_environment({**env, "DEEPLEARNING_WORKERS_COUNT": "4"})
    with pytest.raises(UsageError, match="DEEPLEARNING_WORKER_GPU_COUNT must be a whole number"):
        hosts_from_environment({**env, "DEEPLEARNING_WORKER_GPU_COUNT": "many"})
    with pytest.raises(UsageError, match="DEEPLEARNING_WORKERS_PATH: hostfile /none: cannot be read"):
        hosts_from_environment({**env, "DEEPLEARNING_WORKERS_PATH": "/none"})


def test_which_host_is_this_one() -> None:
    own = socket.gethostname()
    assert Host("localhost").is_here and Host("127.0.0.1").is_here and Host(own).is_here
    assert Host("127.0.0.5").is_here  # any address that this host owns
    assert not Host("198.51.100.7").is_here and not Host("elsewhere.invalid").is_here
    assert not Host("localhost", port=2222).is_here and not Host("localhost", user="x").is_here


words = st.from_regex(r"\A[A-Za-z0-9_][A-Za-z0-9_.-]{0,20}\Z")
hosts = st.builds(
    Host,
    name=words | st.sampled_from(["::1", "fe80::1%eth0", "2001:db8::7"]),
    user=st.none() | words,
    port=st.none() | st.integers(1, 65535),
    slots=st.none() | st.integers(1, 999),
)


@given(st.lists(hosts, min_size=1, max_size=6, unique_by=lambda host: (host.name, host.port)))
def test_what_is_written_is_what_is_read(tmp_path_factory: pytest.TempPathFactory, written: list[Host]) -> None:
    path = tmp_path_factory.mktemp("hosts") / "hosts.txt"
    path.write_text("".join(f"{host.text}{f' slots={host.slots}' if host.slots else ''}\n" for host in written))
    assert read_hostfile(path) == tuple(written)
    assert [host.text for host in parse_hosts(",".join(host.text for host in written))] == [h.text for h in written]


@given(st.text(max_size=40))
def test_any_text_is_hosts_or_one_line_of_error(text: str) -> None:
    try:
        for host in parse_hosts(text):
            assert not host.name.startswith("-") and not (host.user or "").startswith("-")
    except UsageError as error:
        assert "\n" not in str(error)
