"""Validation gives one figure: from any number of workers, to the last bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from gangs import GangPool
from late import Late
from shoal.data.augment import Augment
from shoal.data.batches import Batch
from shoal.data.source import Held
from shoal.data.sources.synthetic import Synthetic
from shoal.step.gang import Alone, Gang
from shoal.train.evaluate import Score, _highest, judge

IMAGES, CLASSES = 23, 7


def validation() -> Held:
    data = Synthetic(images=4 * IMAGES, classes=CLASSES, channels=1, size=8).open("val")
    data.labels[[3, 11]] = -1  # without a label
    return data


def logits_of(batch: Batch, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, CLASSES)).to(dtype)
    with torch.no_grad():
        return model(batch.images.to(dtype) / 255)


def exact_logits_of(batch: Batch) -> torch.Tensor:
    return logits_of(batch, torch.float64)


def score(gang: Gang, eval_batch: int) -> tuple[Score, int]:
    """And the number of images that this worker looked at."""
    seen = []

    def watched(batch: Batch) -> torch.Tensor:
        seen.append(len(batch.images))
        return logits_of(batch)

    return judge(watched, validation(), Augment(), eval_batch, gang)[0], sum(seen)


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("eval_batch", [1, 4, 7, 10, 23, 100])
def test_any_number_of_workers_gives_the_same_bits(gang_pool: GangPool, n: int, eval_batch: int):
    ((alone, _),) = gang_pool.run(score, 1, eval_batch)
    outcomes = gang_pool.run(score, n, eval_batch)
    assert [outcome for outcome, _ in outcomes] == [alone] * n
    assert sum(seen for _, seen in outcomes) == IMAGES  # every image once, none twice
    if eval_batch >= IMAGES:  # one chunk: the others had none, and took part all the same
        assert sorted(seen for _, seen in outcomes) == [0] * (n - 1) + [IMAGES]


def test_what_comes_late_is_judged_when_it_has_come():
    late, now = (judge(logits_of, validation(), Augment(), 4, Alone(), upload=upload) for upload in (Late(), None))
    assert late[0] == now[0]
    assert np.array_equal(late[1].guesses, now[1].guesses)


def test_the_figure_is_the_right_one():
    data = validation()
    outcome = judge(exact_logits_of, data, Augment(), 4, Alone())[0]
    whole = Batch(torch.from_numpy(data.images), torch.from_numpy(data.labels), torch.arange(IMAGES), IMAGES)
    logits, labels = exact_logits_of(whole), whole.labels
    known = labels >= 0
    top = logits[known].topk(5).indices == labels[known][:, None]
    assert (outcome.correct1, outcome.correct5, outcome.count) == (int(top[:, 0].sum()), int(top.sum()), IMAGES - 2)
    losses = nn.functional.cross_entropy(logits, labels, reduction="none", ignore_index=-1)
    assert outcome.loss == pytest.approx(losses.sum().item() / (IMAGES - 2), rel=1e-12, abs=0)
    assert outcome.top1 == outcome.correct1 / outcome.count and outcome.top5 == outcome.correct5 / outcome.count


def test_nothing_labelled_is_no_division_by_zero():
    data = validation()
    data.labels = np.full_like(data.labels, -1)
    assert judge(logits_of, data, Augment(), 4, Alone())[0] == Score(0.0, 0, 0, 0)


# --- what is said of each image


def judged(gang: Gang, eval_batch: int) -> bytes:
    return judge(logits_of, validation(), Augment(), eval_batch, gang)[1].to_bytes()


def test_predictions_have_the_same_bits_from_any_number_of_workers(gang_pool: GangPool):
    (alone,) = gang_pool.run(judged, 1, 4)
    assert gang_pool.run(judged, 2, 4) == [alone] * 2
    assert gang_pool.run(judged, 3, 4) == [alone] * 3


def test_predictions_agree_with_the_counts_and_with_the_mathematics():
    data = validation()
    told, found = judge(exact_logits_of, data, Augment(), 10, Alone())
    assert (found.correct.sum(), found.correct5.sum(), found.known.sum()) == (told.correct1, told.correct5, told.count)
    assert found.classes == data.classes and np.array_equal(found.labels, data.labels)
    whole = Batch(torch.from_numpy(data.images), torch.from_numpy(data.labels), torch.arange(IMAGES), IMAGES)
    probabilities = exact_logits_of(whole).softmax(1)
    best = probabilities.topk(5)
    assert np.array_equal(found.guesses, best.indices.numpy())
    assert np.array_equal(found.probabilities, best.values.float().numpy())
    known = found.known
    of_label = probabilities[torch.from_numpy(known), data.labels[known]]
    assert np.array_equal(found.label_probabilities[known], of_label.float().numpy())
    assert not found.label_probabilities[~known].any()


def test_equal_logits_are_guessed_in_the_order_of_classes_as_the_counts_have_it():
    data = validation()
    told, found = judge(lambda batch: torch.zeros(len(batch.images), CLASSES), data, Augment(), 10, Alone())
    assert found.guesses.tolist() == [[0, 1, 2, 3, 4]] * IMAGES
    assert (found.correct.sum(), found.correct5.sum()) == (told.correct1, told.correct5)


@pytest.mark.parametrize("kind", ["spread", "ties", "no numbers"])
def test_the_highest_are_those_of_a_stable_sort(kind):
    logits = torch.randn(200, 50, generator=torch.Generator().manual_seed(1))
    if kind == "ties":
        logits = logits.mul(3).round()
    elif kind == "no numbers":
        logits[::3, 7], logits[::5, 9:20] = float("nan"), float("-inf")
    wanted = logits.sort(dim=1, descending=True, stable=True).indices
    assert all(torch.equal(_highest(logits, count), wanted[:, :count]) for count in (1, 5, 49, 50, 60))


def test_fewer_classes_than_guesses_and_logits_that_are_no_numbers():
    data = validation()
    data.labels %= 3
    told, found = judge(lambda batch: torch.ones(len(batch.images), 3), data, Augment(), 10, Alone())
    assert found.guesses.shape == (IMAGES, 3) and told.correct5 == told.count == found.correct5.sum()
    told, found = judge(lambda batch: torch.full((len(batch.images), 3), torch.nan), data, Augment(), 10, Alone())
    assert told.correct1 == found.correct.sum() == 0 and found.confusion()[2].sum() == 0
