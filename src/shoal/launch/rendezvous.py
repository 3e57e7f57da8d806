"""Rendezvous: the addresses and ports at which the processes of one start find each other, and what they prove
themselves with."""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence

from shoal.launch.certificate import CERTIFICATE_FILE, PLAIN, fresh_certificate
from shoal.launch.environment import own
from shoal.launch.fleet import Fleet
from shoal.launch.handshake import SECRET_FILE
from shoal.launch.interface import address_towards
from shoal.launch.job import Plan
from shoal.launch.node import Node

LOOPBACK = "127.0.0.1"


def meet(fleet: Fleet, plan: Plan) -> dict[str, str]:
    """Has ports taken; the values of all placeholders but `generation`. Some are missing when the owner stops."""
    nodes = [fleet.nodes[host.text] for host in plan.hosts]
    addresses = _addresses(nodes)
    names: list[list[str]] = [[name for name, at in plan.ports if at == number] for number in range(len(nodes))]
    leader = leading(plan)
    names[leader].insert(0, "rendezvous")
    asked = [(node, wanted, at) for node, wanted, at in zip(nodes, names, addresses, strict=True) if wanted]
    opened = {"rendezvous", *(command.listens for command in plan.commands)}
    for node, wanted, address in asked:
        node.listen(wanted, address, plan.job.ports, open=[name for name in wanted if name in opened])
    fleet.until(lambda: all(node.ports or node.lost for node, *_ in asked))
    fleet.all_well([node for node, *_ in asked], lambda node: node.ports)
    ports = {name: port for node, *_ in asked for name, port in node.ports.items()}
    host, port = addresses[leader], ports.pop("rendezvous", 0)
    return {
        "rendezvous": f"{host}:{port}",
        "rendezvous_host": host,
        "rendezvous_port": str(port),
        **{f"address:{number}": address for number, address in enumerate(addresses)},
        **{f"port:{name}": str(port) for name, port in ports.items()},
    }


def leading(plan: Plan) -> int:
    """The node of the first worker, who listens."""
    return next((command.node for command in plan.commands if command.leads), 0)


def where(fleet: Fleet, plan: Plan, values: dict[str, str]) -> str:
    """The place and how it was chosen, in a line for people."""
    first = fleet.nodes[plan.hosts[leading(plan)].text]
    why = "on the way to the others" if first.line.is_local else "by which it was reached"
    return f"workers meet at {values['rendezvous']}: {first.interface or 'an address'} of {first.name}, {why}"


def fresh_secrets(plan: Plan) -> dict[str, str]:
    """Variable -> what the file that it names holds, on every host. Another secret for each generation: servers know by
    it which snapshots are not theirs."""
    if not plan.serves:
        return {}
    made = {SECRET_FILE: secrets.token_hex(32)}
    plain = {**os.environ, **own(os.environ, plan.job.env)}.get(PLAIN) == "1"
    if len(plan.hosts) > 1 and not plain:
        made[CERTIFICATE_FILE] = fresh_certificate().decode()
    return made


def _addresses(nodes: Sequence[Node]) -> list[str]:
    """How the hosts reach each other."""
    if len(nodes) == 1 and nodes[0].line.is_local:
        return [LOOPBACK]
    others = [node for node in nodes if not node.line.is_local]
    here = (address_towards(others[0].address or others[0].host.name) if others else None) or LOOPBACK
    return [here if node.line.is_local else node.address or node.host.name for node in nodes]
