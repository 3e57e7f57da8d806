"""The clock: when what is due."""

from __future__ import annotations

from shoal.base.duration import Duration, Span
from shoal.train.clock import Clock


def clock(**acts: str) -> tuple[Clock, list[str]]:
    """Epochs of 10 steps, 25 in all; acts called `log` may be done alone."""
    made, done = Clock(Span(100, 10), Duration.parse("25st")), []
    for name, period in acts.items():
        made.every(Duration.parse(period), lambda name=name: done.append(name), alone=name == "log")
    return made, done


def test_ahead_are_the_steps_until_all_must_meet():
    made, _ = clock(log="2st", save="7st", val="1ep")
    found = []
    while not made.ended:
        found.append(made.ahead)
        made.tick(found[-1])
    assert found == [7, 3, 4, 6, 1, 4]


def test_several_steps_at_once_do_each_act_once():
    made, done = clock(log="2st", save="7st", val="1ep")
    for act in made.tick(made.ahead):
        act()
    assert (made.step, done) == (7, ["log", "save"])
    for act in made.tick(1):
        act()
    assert (made.step, done) == (8, ["log", "save", "log"])
    for act in made.tick(17):
        act()
    assert done[3:] == ["log", "save", "val"]
    assert made.ended
