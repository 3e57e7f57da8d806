"""Opening data may take long; whoever watches over a worker is told that it gets on."""

from __future__ import annotations

import pytest

from a_checkpoint import DIGITS
from shoal.base.beats import beat
from shoal.base.errors import UsageError
from shoal.base.run import Run
from shoal.launch.pulse import LONG, OPENS, Pulse
from shoal.recipe.load import parse
from shoal.train import worker
from shoal.train.machine import Machine
from shoal.train.signals import StopSignals


class Heard(Pulse):
    def __init__(self) -> None:
        super().__init__()
        self.beats: list[tuple[str, int, float]] = []

    def beat(self, phase: str, step: int, patience: float = 1.0) -> None:
        self.beats.append((phase, step, patience))


def test_a_worker_that_opens_its_data_beats_as_that_gets_on(tmp_path, monkeypatch):
    def opens(recipe: object) -> None:
        for _ in range(3):
            beat()
        raise UsageError("no data")

    monkeypatch.setattr(worker, "open_data", opens)
    monkeypatch.setattr(Machine, "use", lambda *_, **__: None)
    pulse = Heard()
    with pytest.raises(UsageError, match="no data"):
        loaded = parse(DIGITS, "recipe.yaml")
        worker.work(loaded, Run(tmp_path), None, StopSignals(), resume="never", began=0.0, pulse=pulse)
    assert pulse.beats == [(OPENS, 0, LONG)] * 4
    beat()
    assert len(pulse.beats) == 4
