"""Timing: what all workers' stopwatches come to: where the time of steps went, and who came last to the exchange.

All leave an exchange together, so who stood in it for the shortest time came last, whatever clocks say, and what the
others stood in it for longer was waiting for him. A backward pass tells nothing of the kind: it may itself wait for
others' gradients.
"""

from __future__ import annotations

from typing import Any

import torch

from shoal.step.gang import Gang
from shoal.step.stopwatch import COMPUTE, EXCHANGE, INPUT, OTHER, PARTS, TRANSFER, UPDATE, WAITING

_MOST_TIMES, _FEWEST_STEPS, _MOST_STEPS = 50, 40, 500
"""`time` events of a training, and steps that one is about: each costs an exchange of its own, and of a training under
way nobody knows more than they say."""
_MOST_ROWS = 64
"""Workers whose own figures are told; of more, those who came last most often."""
_OWN = (INPUT, TRANSFER, COMPUTE, UPDATE, OTHER)
"""Parts in which a worker waits for nobody."""


def told_every(steps: int) -> float:
    """Steps from one `time` event to the next, of a training of so many."""
    return min(max(steps / _MOST_TIMES, _FEWEST_STEPS), _MOST_STEPS)


class Timing:
    """Reads the gang's watches now and then."""

    def __init__(self, gang: Gang, *, together: bool) -> None:
        """together: workers do every step together, and so have as many steps to tell of."""
        self._gang, self._together, self._made_s = gang, together, 0.0

    def read(self, made_s: float) -> dict[str, Any]:
        """The fields of a `time` event: the steps since the last call; empty without any. A collective.

        made_s: seconds that this worker's images have taken to be made so far, behind the steps or before their eyes.

        Of workers who go their own ways only sums are told; there is no exchange to come last to.
        """
        watch = self._gang.watch
        with watch.charge():
            rows = watch.read()
            if not self._together:
                rows = torch.cat([rows.sum(0), torch.tensor([len(rows)])])[None]
            own = torch.zeros(1, rows.shape[1], dtype=rows.dtype)
            own[0, 0], own[0, 1] = watch.own_s, made_s - self._made_s
            self._made_s = made_s
            told = self._gang.gather(torch.cat([rows, own]).to(self._gang.device))
            held = torch.stack(told).cpu()
            own_s, made, rows = float(held[:, -1, 0].max()), held[:, -1, 1].tolist(), held[:, :-1]
            steps = rows.shape[1] if self._together else int(rows[:, 0, -1].max())
            if not steps:
                return {}
            figures = _together(rows) if self._together and len(rows) > 1 else _apart(rows[:, :, : len(PARTS)].sum(1))
            for row in figures["ranks"]:
                row["made"] = round(made[row["rank"]], 6)
        return {"steps": steps, "own_s": own_s, **figures}


def _apart(sums: torch.Tensor) -> dict[str, Any]:
    """sums: seconds [workers, parts]."""
    ranks = [{"rank": rank, **_named(row)} for rank, row in enumerate(sums)][:_MOST_ROWS]
    return {"parts": _named(sums.mean(0)), "slowest": None, "ranks": ranks}


def _together(rows: torch.Tensor) -> dict[str, Any]:
    """rows: seconds [workers, steps, parts], of workers who make every step together, and meet in some or all."""
    rows = rows.clone()
    stood = rows[:, :, EXCHANGE]
    stood = stood[:, stood.any(0)]  # [workers, meetings]; apart, nobody stands anywhere
    if not stood.numel():
        return _apart(rows.sum(1))
    shortest, last = stood.min(0)
    waited = (stood - shortest).sum(1)
    rows[:, :, EXCHANGE] = rows[:, :, EXCHANGE].min(0).values
    ahead = stood.topk(2, dim=0, largest=False).values  # the two who came last
    gains = torch.zeros(len(rows), dtype=rows.dtype).index_add_(0, last, ahead[1] - ahead[0])
    times_last = torch.bincount(last, minlength=len(rows))
    sums = rows.sum(1)
    sums[:, WAITING] += waited
    slowest = int(gains.argmax())
    others = torch.cat([sums[:slowest], sums[slowest + 1 :]])
    excess = (sums[slowest] - others.median(0).values)[list(_OWN)]
    worst = times_last.argsort(descending=True)[:_MOST_ROWS].sort().values.tolist()
    return {
        "parts": _named(sums.mean(0)),
        "slowest": {
            "rank": slowest,
            "last": int(times_last[slowest]),
            "of": len(last),
            "gain_s": float(gains[slowest]),
            "because": PARTS[_OWN[int(excess.argmax())]],
        },
        "ranks": [{"rank": rank, **_named(sums[rank]), "last": int(times_last[rank])} for rank in worst],
    }


def _named(seconds: torch.Tensor) -> dict[str, float]:
    return {name: round(value, 6) for name, value in zip(PARTS, seconds.tolist(), strict=True)}
