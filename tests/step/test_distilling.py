"""Divergences against the formulas as they were published; who counts for what; a teacher that stays as it is."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from a_gang import a_batch
from torch import nn
from torch.nn import functional as F

from shoal.data.source import NO_IMAGE, NO_LABEL
from shoal.step.distilling import Asked, Said, Taught, soft, student
from shoal.step.tasks.distill import Distill, Teacher

CLASSES = 7
TEACHER = Teacher(run="nowhere")


def logits_of(seed: int, count: int = 12) -> torch.Tensor:
    return 3 * torch.randn(count, CLASSES, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def loss_of(labels: list[int], theirs: torch.Tensor, *, top_k: int | None = None, **options: Any) -> torch.Tensor:
    """Of a student whose logits are `logits_of(1)`."""
    task = Distill(teacher=TEACHER, **options)
    said = Said(soft(theirs, task.softness))
    if top_k:
        logs, chosen = said.logs.topk(top_k)
        others = said.logs.scatter(1, chosen, -torch.inf).logsumexp(1, keepdim=True)
        said = Said(torch.cat([logs, others], 1), chosen)
    taught = Taught.by(task, lambda batch: said)
    loss, logits = taught.loss(lambda inputs: logits_of(1, len(labels)), torch.empty(0), a_batch(labels), 0)
    assert torch.equal(logits, logits_of(1, len(labels)))
    return loss


def test_kl_is_hintons():
    """Cross-entropy of softened targets, less their entropy, times the temperature squared, mean over the batch."""
    ours, theirs, temperature = logits_of(1), logits_of(2), 3.0
    target = torch.softmax(theirs / temperature, 1)
    crossed = F.cross_entropy(ours / temperature, target, reduction="sum")
    entropy = -(target * target.log()).sum()
    got = loss_of([0] * 12, theirs, temperature=temperature, label_weight=0.0)
    torch.testing.assert_close(got, temperature**2 * (crossed - entropy), rtol=1e-12, atol=0)


def test_symmetric_is_ssld():
    """PaddleClas: half the sum of both directions' batch means, on plain softmax outputs; here summed over a batch."""
    ours, theirs = torch.softmax(logits_of(1), 1), torch.softmax(logits_of(2), 1)
    there = F.kl_div(ours.log(), theirs, reduction="batchmean") + F.kl_div(theirs.log(), ours, reduction="batchmean")
    got = loss_of([0] * 12, logits_of(2), divergence="symmetric", label_weight=0.0)
    torch.testing.assert_close(got / 12, there / 2, rtol=1e-12, atol=0)


def test_at_temperature_1_the_gradient_is_that_of_soft_labels():
    ours = logits_of(1).requires_grad_()
    target = torch.softmax(logits_of(2), 1)
    task = Taught.by(Distill(teacher=TEACHER, temperature=1.0, label_weight=0.0), lambda batch: Said(target.log()))
    (got,) = torch.autograd.grad(task.loss(lambda inputs: ours, torch.empty(0), a_batch([0] * 12), 0)[0], ours)
    (crossed,) = torch.autograd.grad(F.cross_entropy(ours, target, reduction="sum"), ours)
    torch.testing.assert_close(got, crossed, rtol=1e-12, atol=1e-14)


def test_labels_count_where_they_are_and_images_where_they_are():
    """An image without a label is learnt from by the teacher's word, one that was skipped not at all."""
    labels, theirs = [3, NO_LABEL, 0, NO_IMAGE], logits_of(2, 4)
    options = {"distill_weight": 0.5, "label_weight": 2.0, "smoothing": 0.1}
    each = [loss_of([0] * 4, theirs[n : n + 1].expand(4, -1), label_weight=0.0) for n in range(4)]
    assert all(float(one) > 0 for one in each)
    apart = F.kl_div(soft(logits_of(1, 4), 4.0), soft(theirs, 4.0), log_target=True, reduction="none").sum(1) * 16
    crossed = F.cross_entropy(logits_of(1, 4)[[0, 2]], torch.tensor([3, 0]), reduction="sum", label_smoothing=0.1)
    expected = 0.5 * apart[:3].sum() + 2.0 * crossed
    torch.testing.assert_close(loss_of(labels, theirs, **options), expected, rtol=1e-12, atol=0)


def test_a_skipped_image_that_makes_no_sense_harms_nobody():
    theirs = logits_of(2, 2)
    theirs[1] = torch.nan
    assert torch.isfinite(loss_of([0, NO_IMAGE], theirs))


@pytest.mark.parametrize("divergence", ["kl", "symmetric"])
def test_all_classes_chosen_are_all_classes(divergence):
    whole = loss_of([0] * 12, logits_of(2), divergence=divergence)
    task = Distill(teacher=TEACHER, divergence=divergence)
    logs, chosen = soft(logits_of(2), task.softness).topk(CLASSES)
    taught = Taught.by(task, lambda batch: Said(logs, chosen))
    got, _ = taught.loss(lambda inputs: logits_of(1), torch.empty(0), a_batch([0] * 12), 0)
    torch.testing.assert_close(got, whole, rtol=1e-12, atol=0)


@pytest.mark.parametrize("divergence", ["kl", "symmetric"])
def test_others_count_as_one_class(divergence):
    """To look less closely shows less of a difference (data processing inequality), and of none nothing."""
    whole = loss_of([0] * 12, logits_of(2), divergence=divergence, label_weight=0.0)
    some = [loss_of([0] * 12, logits_of(2), divergence=divergence, label_weight=0.0, top_k=k) for k in (1, 3, 5)]
    assert 0 < some[0] < some[1] < some[2] < whole
    same = loss_of([0] * 12, logits_of(1), divergence=divergence, label_weight=0.0, top_k=3)
    assert abs(float(same)) < 1e-12


def test_the_students_probabilities_of_few_classes_sum_to_1():
    chosen = torch.tensor([[3, 1], [0, 6]])
    logits = logits_of(4, 2).requires_grad_()
    logs = student(logits, 2.0, chosen)
    torch.testing.assert_close(logs.exp().sum(1), torch.ones(2, dtype=torch.float64), rtol=1e-12, atol=0)
    assert torch.isfinite(torch.autograd.grad(logs.sum(), logits)[0]).all()


def test_a_teacher_looks_with_its_own_eyes_and_learns_nothing():
    """Its own normalisation, its running statistics, no dropout, no gradient."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.BatchNorm2d(1), nn.Dropout(0.5), nn.Flatten(), nn.Linear(16, CLASSES)).train()
    before = copy.deepcopy(net.state_dict())
    asked = Asked(net, (100.0,), (50.0,), 2.0)
    batch = replace(a_batch([0] * 9), images=torch.from_numpy(np.arange(144, dtype=np.uint8).reshape(9, 1, 4, 4)))
    said = asked(batch)
    by_hand = net.eval()((batch.images.float() - 100) / 50)
    torch.testing.assert_close(said.logs, (by_hand / 2).log_softmax(1), rtol=1e-5, atol=1e-6)
    assert not said.logs.requires_grad and not any(one.requires_grad for one in net.parameters())
    assert all(torch.equal(before[key], tensor) for key, tensor in net.state_dict().items())
    assert said.chosen is None and torch.equal(asked(batch).logs, said.logs)
