"""Summon: has an engine start an agent on every host of a plan; they come here by TCP, and the job begins."""

from __future__ import annotations

import os
import secrets
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from shoal.base.errors import DONE, ShoalError, UsageError
from shoal.base.run import Run
from shoal.launch.come import HEAD, NUM_NODES, SECRET, SECRET_FILE
from shoal.launch.engine import Engine
from shoal.launch.handshake import Door
from shoal.launch.head import Head
from shoal.launch.hosts import Host
from shoal.launch.interface import address_towards
from shoal.launch.job import Outcome, Plan
from shoal.launch.line import Line
from shoal.launch.link import Link
from shoal.launch.ports import listen
from shoal.launch.script import write_private
from shoal.launch.seats import PURPOSE, Seat, Seats
from shoal.launch.warden import SILENCE

COME_S = 120.0
"""How long agents may take to come."""
TOLD_S = 10.0
"""After so long people are told what is waited for."""
CARRIED = ("PYTHONPATH", "LD_LIBRARY_PATH")
"""What an agent needs to start, beside the engine's own environment."""


def told() -> tuple[str, ...]:
    """Names of the variables that the engine must carry to every agent."""
    return (
        HEAD,
        SECRET,
        NUM_NODES,
        "SHOAL_JOB",
        "SHOAL_RUN",
        SILENCE,
        *(name for name in CARRIED if name in os.environ),
    )


def agent_argv(python: str | None) -> tuple[str, ...]:
    """What the engine starts on every host."""
    return (python or sys.executable, "-m", "shoal", "agent", "--come")


def summon(
    plan: Plan,
    argv: Sequence[str],
    *,
    address: str | None = None,
    env: Mapping[str, str] | None = None,
    log: str | None = None,
    wait_s: float = COME_S,
    secret_file: Path | None = None,
) -> Summoned:
    """The job of `plan`, once `argv` has started `shoal agent --come` on each of its hosts, in their order.

    `address`: where they reach this host; None: the one on the route to them. `env`: more variables for the engine.
    `secret_file`: where the secret lies for them meanwhile, on storage that all share; None: in their environment.
    `log`: what its log is called, if not after the program. `wait_s`: how long they may take to come.
    ShoalError with the engine's own words where it does not.
    """
    job = plan.job if plan.job.id else replace(plan.job, id=secrets.token_hex(8))
    plan = replace(plan, job=job)
    secret = secrets.token_hex(32)
    own = address or _address(plan.hosts)
    try:
        listening = listen(own, job.ports, set())
    except OSError as error:
        raise UsageError(
            f"cannot listen on {own}: {error.strerror}; set the launcher's address to one of this host's"
        ) from None
    told_env = {
        HEAD: f"{own}:{listening.getsockname()[1]}",
        **({SECRET: secret} if secret_file is None else {SECRET_FILE: str(secret_file)}),
        NUM_NODES: str(len(plan.hosts)),
        "SHOAL_JOB": job.id,
        "SHOAL_RUN": os.path.abspath(job.run),
        SILENCE: f"{job.silence_s:g}",
    }
    if secret_file:
        write_private(secret_file, secret)
    door = Door(listening, secret.encode(), PURPOSE)
    with Seats(door, range(len(plan.hosts)), _refusal(plan), lambda line: None) as seats:
        engine = Engine(
            argv, {**os.environ, **(env or {}), **told_env}, Run(job.run).engine_log(log or os.path.basename(argv[0]))
        )
        try:
            _wait(seats, plan.hosts, engine, wait_s)
            left = {plan.hosts[node].text: connection.detach() for node, connection in seats.begin().items()}

            def connect(host: Host, plan: Plan, terminal: int | None) -> Line:
                if host.text not in left:
                    raise ShoalError(f"{host.text}: its agent is gone, and {engine.name} starts no other")
                return Arrival(left.pop(host.text), engine)

            return Summoned(Head(plan, connect).start(), engine)
        except BaseException:
            engine.end(hurry=True)
            raise
        finally:
            if secret_file:
                secret_file.unlink(missing_ok=True)


class Arrival(Line):
    """The link of an agent that came."""

    def __init__(self, descriptor: int, engine: Engine) -> None:
        super().__init__(Link(descriptor, descriptor))
        self._engine = engine

    def last_words(self) -> str:
        return self._engine.last_words()


class Summoned:
    """A Handle on the job and on the engine's program."""

    def __init__(self, head: Head, engine: Engine) -> None:
        self._head, self._engine = head, engine

    def wait(self, timeout_s: float | None = None) -> Outcome:
        hurry = True
        try:
            outcome = self._head.wait(timeout_s)
            hurry = outcome.exit_code != DONE
            return outcome
        finally:
            self._engine.end(hurry=hurry)

    @property
    def told(self) -> set[int]:
        """Signals that were to be passed on to the workers."""
        return self._head.told

    def status(self) -> dict[str, str]:
        return self._head.status()

    def cancel(self) -> None:
        self._head.cancel()


def _address(hosts: Sequence[Host]) -> str:
    """The one by which the hosts reach this one."""
    away = [host for host in hosts if not host.is_here]
    if not away:
        return "127.0.0.1"
    found = next((address for host in away if (address := address_towards(host.name))), None)
    if found is None:
        raise UsageError(f"no way from here to {away[0].text}; is the name right? Else set the launcher's address")
    return found


def _refusal(plan: Plan) -> Callable[[Seat, Collection[int]], str | None]:
    def refuse(seat: Seat, seated: Collection[int]) -> str | None:
        belongs = seat.command == plan.job.id and 0 <= seat.node < len(plan.hosts) and seat.node not in seated
        return None if belongs else "this job waits for another agent"

    return refuse


def _wait(seats: Seats, hosts: Sequence[Host], engine: Engine, limit_s: float) -> None:
    began, is_told = time.monotonic(), False
    while missing := seats.missing:
        names = ", ".join(hosts[node].text for node in missing[:8]) + (", …" if len(missing) > 8 else "")
        waited_s = time.monotonic() - began
        if engine.has_ended:
            raise ShoalError(f"no agent came from {names}: {engine.verdict()}")
        if waited_s > limit_s:
            said = "\n".join(f"  {line}" for line in engine.said())
            raise ShoalError(
                f"no agent came from {names} within {limit_s:g} s; {engine.name} says:\n{said or '  nothing'}"
            )
        if waited_s > TOLD_S and not is_told:
            is_told = True
            last = engine.said()[-1:]
            print(f"waiting for agents on {names}{': ' + last[0] if last else ''}", file=sys.stderr, flush=True)
        seats.turn(0.2)
