"""Which process runs where: hosts in order, then slots."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.base.errors import UsageError
from shoal.launch.hosts import Host
from shoal.launch.job import Job, Role
from shoal.launch.place import Slot, place, room
from shoal.launch.plan import plan_of


def job(workers: int, *hosts: Host, servers: int = 0, per_node: int | None = None) -> Job:
    roles = [Role("worker", workers, ("x",))]
    if servers:
        roles += [Role("server", servers, ("x",)), Role("scheduler", 1, ("x",))]
    return Job(tuple(roles), Path("run"), hosts=hosts, nproc_per_node=per_node)


def workers(slots: tuple[Slot, ...]) -> dict[str, list[int]]:
    """Host -> the ranks of its workers."""
    found: dict[str, list[int]] = {}
    for slot in slots:
        if slot.role == "worker":
            found.setdefault(slot.host.name, []).append(slot.rank)
    return found


A, B, C = Host("a"), Host("b"), Host("c")


def test_this_host_takes_any_number() -> None:
    assert place(job(2)) == (
        Slot("worker", 0, Host("localhost"), 0, 2, 0, 1),
        Slot("worker", 1, Host("localhost"), 1, 2, 0, 1),
    )


def test_hosts_in_order_then_slots() -> None:
    assert workers(place(job(5, Host("a", slots=2), Host("b", slots=4)))) == {"a": [0, 1], "b": [2, 3, 4]}
    assert workers(place(job(2, Host("a", slots=2), Host("b", slots=4)))) == {"a": [0, 1]}
    assert workers(place(job(3, Host("a", slots=2), B, C))) == {"a": [0, 1], "b": [2]}
    assert workers(place(job(3, A, B, per_node=2))) == {"a": [0, 1], "b": [2]}
    assert workers(place(job(3, Host("a", slots=1), Host("b", slots=9), per_node=2))) == {"a": [0], "b": [1, 2]}


def test_without_slots_equal_blocks() -> None:
    assert workers(place(job(4, A, B))) == {"a": [0, 1], "b": [2, 3]}
    assert workers(place(job(5, A, B))) == {"a": [0, 1, 2], "b": [3, 4]}
    assert workers(place(job(2, A, B, C))) == {"a": [0], "b": [1]}


def test_coordinates() -> None:
    last = place(job(3, Host("a", slots=2), Host("b", slots=4), C))[-1]
    assert last == Slot("worker", 2, Host("b", slots=4), 0, 1, 1, 2)


def test_servers_go_round_the_hosts_with_workers_and_the_scheduler_is_beside_worker_0() -> None:
    slots = place(job(2, A, B, C, servers=3))
    assert [(slot.name, slot.host.name, slot.rank_of_node, slot.node) for slot in slots] == [
        ("worker-0", "a", 0, 0),
        ("worker-1", "b", 0, 1),
        ("server-0", "a", 0, 0),
        ("server-1", "b", 0, 1),
        ("server-2", "a", 1, 0),
        ("scheduler-0", "a", 0, 0),
    ]


def test_more_workers_than_slots() -> None:
    with pytest.raises(UsageError) as raised:
        place(job(7, Host("a", slots=2), Host("b", slots=4)))
    assert str(raised.value) == (
        "7 workers for 6 slots (a: 2, b: 4); ask for fewer with -n, name more hosts, "
        "or raise slots=N in the hostfile or --nproc-per-node (to 4)"
    )
    with pytest.raises(UsageError, match=r"3 workers for 2 slots \(localhost: 2\)"):
        place(job(3, per_node=2))
    with pytest.raises(UsageError, match=r"… 99 hosts\)"):
        place(job(100, *(Host(f"h{k}", slots=1) for k in range(99))))


def test_room() -> None:
    assert room((), None) is None and room((A, B), None) is None
    assert room((), 3) == 3 and room((A, B), 3) == 6
    assert room((Host("a", slots=4), B), None) == 5


hosts = st.lists(st.none() | st.integers(1, 5), min_size=1, max_size=6).map(
    lambda sizes: tuple(Host(f"h{index}", slots=size) for index, size in enumerate(sizes))
)


@given(st.integers(1, 40), hosts, st.none() | st.integers(1, 4), st.integers(0, 9))
def test_every_rank_once_in_order_and_never_too_many(
    count: int, hosts: tuple[Host, ...], per_node: int | None, servers: int
) -> None:
    space = room(hosts, per_node)
    asked = job(count, *hosts, servers=servers, per_node=per_node)
    if space is not None and count > space:
        with pytest.raises(UsageError):
            place(asked)
        return
    slots = place(asked)
    assert slots == place(asked)
    nodes = {slot.node: slot.host for slot in slots}
    assert sorted(nodes) == list(range(slots[0].num_nodes))
    assert [nodes[node] for node in sorted(nodes)] == [host for host in hosts if host in nodes.values()]
    for role, size in (("worker", count), ("server", servers)):
        mine = [slot for slot in slots if slot.role == role]
        assert [slot.rank for slot in mine] == list(range(size))
        for slot in mine:
            here = [other for other in mine if other.node == slot.node]
            assert slot.ranks_per_node == len(here)
            assert here[slot.rank_of_node] is slot
            if role == "worker":
                assert len(here) <= min(per_node or 99, slot.host.slots or 99)
    assert [slot.node for slot in slots if slot.role == "worker"] == sorted(
        slot.node for slot in slots if slot.role == "worker"
    )
    assert {slot.node for slot in slots} == {slot.node for slot in slots if slot.role == "worker"}


def test_servers_of_our_own_listen_before_anything_starts() -> None:
    roles = (Role("worker", 3, ("x",), expendable=True), Role("server", 2, ("x",)))
    plan = plan_of(Job(roles, Path("run"), hosts=(A, B)), "ssh")
    assert plan.ports == (("server-0", 0), ("server-1", 1)) and plan.serves
    for command in plan.commands:
        assert command.env["SHOAL_SERVERS"] == "{address:0}:{port:server-0},{address:1}:{port:server-1}"
        assert command.env["SHOAL_NUM_WORKERS"] == "3"
        assert command.listens == ("" if command.role == "worker" else f"server-{command.rank}")
    assert [command.expendable for command in plan.commands] == [False, True, True, False, False]
    alone = plan_of(Job(roles, Path("run")), "local")  # another worker sees the first one's run folder
    assert [command.expendable for command in alone.commands] == [True, True, True, False, False]
