"""Chaos: one of a job's processes or connections is killed, stopped or cut at a random time; what becomes of the rest.

    python tests/clusters/chaos.py [--cases 120] [--trainings 24] [--seed 1] [--only agent-STOP]

Each case starts the same command at once after the last one's end (so its ports must be free), strikes, and checks
what is promised: 5 s after a closed connection, or that long after --silence, nothing of the job is alive on any host
(by its tag, and by everything that was not there before), and bystanders live on untouched. Trainings go on within
30 s, or when they are started again, and end with the bits of one that nobody struck.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from cases import EVENTS, FATAL, START_S, STOPPING, UNNOTICED, Seen, cases
from cluster import cluster, why_not
from stage import Stage


def table(seen: Sequence[Seen]) -> str:
    """Per event: cases, faults, and how long until nothing was left, or until the training went on."""
    lines = [
        "| struck | how | cases | failed | promised | median | slowest |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for trains in (False, True):
        for event in EVENTS:
            mine = [one for one in seen if one.case.event == event and one.case.trains == trains]
            for limit_s in sorted({one.case.limit_s for one in mine}):
                own = [one for one in mine if one.case.limit_s == limit_s]
                lines.append(_row(event, trains, limit_s, own))
    return "\n".join(lines)


def _row(event: tuple[str, str], trains: bool, limit_s: float, seen: Sequence[Seen]) -> str:
    seconds = [one.seconds for one in seen]
    failed = sum(bool(one.faults) for one in seen)
    if trains:
        promised = f"{limit_s:g} s" if event in FATAL | STOPPING else f"goes on within {limit_s:g} s"
    else:
        promised = f"{limit_s:g} s" + (" after the launcher's end" if event in UNNOTICED else "")
        promised += ", before a host has answered" if limit_s > START_S else ""
    what = f"{event[0]}, training" if trains else event[0]
    figures = f"{statistics.median(seconds):.2f} s | {max(seconds):.2f} s"
    return f"| {what} | {event[1]} | {len(seen)} | {failed} | {promised} | {figures} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--cases", type=int, default=120)
    parser.add_argument("--trainings", type=int, default=24, help="so many of them are trainings")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", help="cases whose name begins so")
    options = parser.parse_args()
    reason = why_not()
    if reason:
        print(f"not run: {reason}")
        return 0
    chosen = cases(options.cases, options.seed, trainings=min(options.trainings, options.cases))
    chosen = [one for one in chosen if one.name.startswith(options.only or "")]
    seen: list[Seen] = []
    with tempfile.TemporaryDirectory(prefix="shoal-chaos-") as folder, cluster(2) as hosts:
        stage = Stage(hosts, Path(folder))
        try:
            for number, case in enumerate(chosen, 1):
                one = stage.play(case)
                seen.append(one)
                verdict = "; ".join(one.faults) or "well"
                print(f"{number:4d} {case.name:28s} {one.seconds:6.2f} s  exit {one.code}  {verdict}", flush=True)
                if one.faults:
                    print("     | " + one.said.strip()[-1500:].replace("\n", "\n     | "), flush=True)
        finally:
            stage.close()
    failed = sum(bool(one.faults) for one in seen)
    print(f"\n{table(seen)}\n\n{len(seen)} cases, {failed} failed, seed {options.seed}, {platform.platform()}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
