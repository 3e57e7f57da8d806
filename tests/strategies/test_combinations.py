"""What a recipe may not ask of a strategy and a precision together: told before anything starts."""

from __future__ import annotations

import pytest

from shoal.recipe.load import RecipeError, load


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("strategy=ps", "precision=O3"), "servers hold no others"),
        (("strategy=local_sgd", "norm=sync"), "sync exchanges statistics in every step"),
        (("strategy=local_sgd:deterministic=true",), "depend on the number of workers"),
        (("strategy=ddp:compress=2bit,deterministic=true",), "deterministic needs compress: none"),
        (("strategy=ddp:compress=powersgd", "precision=fp64"), "fp64 has no compressed gradients"),
        (("strategy=single", "strategy.compress=fp16"), "strategy.compress: unknown key"),
        (("strategy=dp", "strategy.shard_optimizer=true"), "strategy.shard_optimizer: unknown key"),
        (("precision=O1", "precision.nonfinite=stop"), "leave it at skip"),
        (("precision=o2",), "did you mean 'O2'"),
        (("precision=O2", "precision.loss_scale=0"), "expected dynamic or a number > 0"),
    ],
)
def test_it_is_told(words: tuple[str, ...], told: str) -> None:
    with pytest.raises(RecipeError) as caught:
        load("digits", words)
    assert told in str(caught.value)
