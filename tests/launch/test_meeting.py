"""What lies between a worker and the place where all meet is told before anything else is done."""

from __future__ import annotations

import socket

import pytest

from shoal.base.errors import ShoalError
from shoal.base.world import World
from shoal.launch.meeting import check_meeting, check_neighbour


def world(rendezvous: str, rank: int = 1, launcher: str = "shoal") -> World:
    return World(rank, 2, rank, 2, rendezvous, launcher)


def test_a_listening_port_is_well_before_anybody_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        check_meeting(world(f"127.0.0.1:{listening.getsockname()[1]}"))


def test_a_refused_port_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    with pytest.raises(ShoalError, match=f"worker 1 on .* cannot reach worker 0 at 127.0.0.1:{port}: refused"):
        check_meeting(world(f"127.0.0.1:{port}"))


def test_a_silent_port_is_named() -> None:
    with socket.socket() as full:  # its queue is full, so that further connections get no answer
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        port = full.getsockname()[1]
        held = [socket.socket() for _ in range(4)]
        for one in held:
            one.setblocking(False)
            one.connect_ex(("127.0.0.1", port))
        with pytest.raises(ShoalError, match=r"no answer in 0\.2 s: a firewall or another network"):
            check_meeting(world(f"127.0.0.1:{port}"), limit_s=0.2)
        for one in held:
            one.close()


def test_others_make_their_own_meetings() -> None:
    check_meeting(None)
    check_meeting(world("127.0.0.1:1", rank=0))
    check_meeting(world("127.0.0.1:1", launcher="torchrun"))


class Store:
    """torch's store, as far as it is used here."""

    def __init__(self, **held: str) -> None:
        self.held = dict(held)

    def set(self, key: str, value: str) -> None:
        self.held[key] = value

    def get(self, key: str) -> bytes:
        return self.held[key].encode()

    def wait(self, keys: list[str], limit: object) -> None:
        assert set(keys) <= self.held.keys()


def test_a_neighbour_that_cannot_be_reached_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        check_neighbour(Store(**{"at/1": f"127.0.0.1 {port} node2", "tried/1": ""}), world("x:1", rank=0), 5.0)
    told = "rank 0 on .* cannot reach rank 1 on node2 at 127.0.0.1 .Connection refused., from interface lo .127.0.0.1.;"
    with pytest.raises(ShoalError, match=told):
        check_neighbour(Store(**{"at/1": f"127.0.0.1 {port} node2", "tried/1": ""}), world("x:1", rank=0), 5.0)


@pytest.mark.parametrize("name", ["", "no-such-interface"])
def test_without_a_chosen_interface_nothing_is_tried(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", name)
    store = Store(**{"at/1": "- 0 node2", "tried/1": ""})
    check_neighbour(store, world("x:1", rank=0), 5.0)
    assert store.held["at/0"].startswith("- 0 ")
