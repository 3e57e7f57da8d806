"""Shuffle: how far the order of an epoch mixes samples that lie beside each other."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from shoal.recipe.part import Options


class Shuffle(Options, frozen=True, kw_only=True):
    """The order of training images. Each comes once per epoch, whatever is said here."""

    block: Annotated[int, Meta(ge=1)] | None = None
    """So many images that lie one after another are read together: blocks come in random order, and images are mixed
    among `blocks` of them. For disks that are slow to seek; needs data that is mixed already (`shoal data pack
    --shuffle`), as class folders are not. Absent: any image may come at any time."""
    blocks: Annotated[int, Meta(ge=2)] = 64
    """Blocks among which images are mixed, with `block`."""
