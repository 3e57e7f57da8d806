"""What a resumed run may change without asking."""

from __future__ import annotations

import pytest

from shoal.base.errors import UsageError
from shoal.recipe.changes import check_changes
from shoal.recipe.load import load, plain


def changed(before: tuple[str, ...], now: tuple[str, ...]) -> None:
    old, new = (load("own-images", words).recipe for words in (before, now))
    check_changes(plain(old), "here", new, ())


def test_decoders_of_the_same_pixels_may_take_turns():
    changed(("data.decoder=simplejpeg",), ("data.decoder=torchvision",))
    changed(("data.decoder=nvjpeg",), ("data.decoder=nvjpeg", "data.cache=none"))


@pytest.mark.parametrize("words", [("auto", "nvjpeg"), ("nvjpeg", "torchvision")], ids="-".join)
def test_a_decoder_of_other_pixels_is_asked_for(words):
    with pytest.raises(UsageError, match=rf"data\.decoder\.name: {words[0]} -> {words[1]}\n.*--allow data\.decoder"):
        changed(*((f"data.decoder={word}",) for word in words))
