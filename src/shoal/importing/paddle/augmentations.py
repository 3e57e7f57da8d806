"""PaddleClas's operators on training images beyond crops and mirroring, as data.augment."""

from __future__ import annotations

import re
from collections.abc import Callable

from shoal.importing.draft import Draft
from shoal.importing.settings import Settings

AT = "data.augment"
PAINTS = {"const": "mean", "pixel": "noise", "rand": "colour"}
GREY = 128
"""What Paddle's operations bring in from outside."""


def _auto(job: Settings, draft: Draft, at: str) -> None:
    draft.set(f"{AT}.policy", {"name": "autoaugment", "fill": GREY})


def _rand(job: Settings, draft: Draft, at: str) -> None:
    """Strengths are tenths of the most, so that there are eleven."""
    found = {"count": job.count(f"{at}.num_layers", 2), "magnitude": int(job.number(f"{at}.magnitude", 5) or 0)}
    draft.set(f"{AT}.policy", {"name": "randaugment", **found, "bins": 11, "fill": GREY})


def _timm(job: Settings, draft: Draft, at: str) -> None:
    """timm's words, as rand-m9-mstd0.5-inc1."""
    words = job.text(f"{at}.config_str", "rand-m9-mstd0.5-inc1")
    known = dict(re.findall(r"-([a-z]+)([\d.]+)", words))
    chance = job.number(f"{at}.prob", 1.0)
    if not words.startswith("rand"):
        job.leave(f"{at}.config_str", "of timm's policies those that begin with rand are read")
        return
    policy = {"count": int(known.get("n", 2)), "magnitude": int(float(known.get("m", 10)))}
    draft.set(f"{AT}.policy", {"name": "randaugment", **policy, "bins": 11, "fill": GREY, "filter": "linear"})
    if known.keys() - {"m", "n", "inc"} or chance != 1:
        job.leave(f"{at}.config_str", "each operation is done to every image, at that strength")


def _erase(job: Settings, draft: Draft, at: str) -> None:
    narrow, mode = job.number(f"{at}.r1", 0.3) or 0.3, job.text(f"{at}.mode", "const")
    erase = {
        "probability": job.number(f"{at}.EPSILON", 0.5),
        "area": [job.number(f"{at}.sl", 0.02), round(job.number(f"{at}.sh", 0.4) or 0.4, 4)],
        "ratio": [narrow, round(1 / narrow, 4)],
        "paint": PAINTS.get(mode, "mean"),
    }
    if mode not in PAINTS:
        job.wrong(f"{at}.mode", f"expected one of {', '.join(PAINTS)}, got {mode}")
    draft.set(f"{AT}.erase", erase)


def _cutout(job: Settings, draft: Draft, at: str) -> None:
    draft.set(f"{AT}.cutout", {"side": job.count(f"{at}.length", 112), "count": job.count(f"{at}.n_holes", 1)})


def _jitter(job: Settings, draft: Draft, at: str) -> None:
    colour = {key: value for key in ("brightness", "contrast", "saturation") if (value := job.number(f"{at}.{key}"))}
    hue = job.number(f"{at}.hue", 0.0)
    draft.set(f"{AT}.colour", {**colour, **({"hls": [round(180 * hue, 4), 0, 0]} if hue else {})})
    if job.number(f"{at}.prob", 1.0) != 1:
        job.leave(f"{at}.prob", "colours of every image are changed")


KNOWN: dict[str, Callable[[Settings, Draft, str], None]] = {
    "AutoAugment": _auto,
    "RandAugment": _rand,
    "TimmAutoAugment": _timm,
    "RandomErasing": _erase,
    "Cutout": _cutout,
    "ColorJitter": _jitter,
}


def read(job: Settings, draft: Draft, name: str, options: str) -> None:
    """Sets what an operator becomes; one that has no counterpart is told."""
    if name in KNOWN:
        KNOWN[name](job, draft, options)
    else:
        job.findings.leave(job.place(options), name, "no such augmentation (docs/augment.md has those there are)")
    job.whole(options)
