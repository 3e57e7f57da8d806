"""The classify task against plain references; mixing stays inside a shard and belongs to it."""

from __future__ import annotations

import pytest
import torch
from a_gang import a_batch
from hypothesis import given
from hypothesis import strategies as st

from shoal.data.batches import Batch
from shoal.step.mix import mixed
from shoal.step.tasks.classify import Classify

CLASSES = 5


def data(count: int, *, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """inputs float64 [count, 2, 6, 7], labels with some -1."""
    stream = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, 2, 6, 7, dtype=torch.float64, generator=stream)
    return inputs, torch.randint(-1, CLASSES, (count,), generator=stream)


def net(inputs: torch.Tensor) -> torch.Tensor:
    """Logits that depend on every pixel of the image."""
    weights = torch.linspace(-1, 1, inputs.shape[1:].numel() * CLASSES, dtype=inputs.dtype).reshape(-1, CLASSES)
    return inputs.flatten(1) @ weights


def cross_entropy(logits: torch.Tensor, labels: torch.Tensor, smoothing: float) -> torch.Tensor:
    """[B], from the definition; 0 where there is no label."""
    known = labels >= 0
    target = torch.eye(CLASSES, dtype=logits.dtype)[labels.clamp(min=0)] * (1 - smoothing) + smoothing / CLASSES
    return -(target * torch.log(torch.softmax(logits, 1))).sum(1) * known


def part(batch: Batch, low: int, high: int, shards: tuple[tuple[int, int], ...]) -> Batch:
    pieces = (tensor[low:high] for tensor in (batch.images, batch.labels, batch.indices))
    return Batch(*pieces, count_global=batch.count_global, step=batch.step, shards=shards)


# Labels


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.9])
def test_the_loss_is_the_smoothed_cross_entropy_summed(smoothing):
    inputs, labels = data(40)
    loss, logits = Classify(smoothing=smoothing).loss(net, inputs, a_batch(labels.tolist()), seed=0)
    assert torch.equal(logits, net(inputs))
    torch.testing.assert_close(loss, cross_entropy(logits, labels, smoothing).sum(), rtol=1e-12, atol=0)
    known = labels >= 0
    torchs = torch.nn.CrossEntropyLoss(reduction="sum", label_smoothing=smoothing)(logits[known], labels[known])
    torch.testing.assert_close(loss, torchs, rtol=1e-12, atol=0)


@pytest.mark.parametrize("options", [{}, {"smoothing": 0.1}, {"mixup": 0.4}, {"cutmix": 1.0}])
def test_images_without_labels_and_no_images_at_all_have_no_loss(options):
    for labels in ([-1, -1, -1], []):
        inputs = data(len(labels))[0].requires_grad_()
        loss, logits = Classify(**options).loss(net, inputs, a_batch(labels, ((0, len(labels)),)), seed=0)
        loss.backward()
        assert float(loss.detach()) == 0 and logits.shape == (len(labels), CLASSES)
        assert inputs.grad is not None and not inputs.grad.any()


def test_without_mixing_nothing_is_drawn():
    inputs, labels = data(6)
    before = torch.get_rng_state()
    losses = [Classify(smoothing=0.1).loss(net, inputs, a_batch(labels.tolist(), step=s), seed=s)[0] for s in (0, 1)]
    assert torch.equal(*losses) and torch.equal(before, torch.get_rng_state())


# Mixing

shards_of = st.lists(st.integers(1, 5), min_size=1, max_size=5)
alphas = st.sampled_from([(0.4, 0.0), (0.0, 1.0), (0.3, 0.7)])


@given(sizes=shards_of, alpha=alphas, seed=st.integers(0, 20), step=st.integers(0, 20))
def test_an_image_is_mixed_with_its_partner_by_the_share_of_its_shard(sizes, alpha, seed, step):
    inputs, labels = data(sum(sizes), seed=seed)
    batch = a_batch(labels.tolist(), tuple(enumerate(sizes)), step=step)
    kept = inputs.clone()
    result, partner, share = mixed(inputs, batch, seed, mixup=alpha[0], cutmix=alpha[1])
    assert torch.equal(inputs, kept)
    assert result.dtype == share.dtype == inputs.dtype and partner.dtype == torch.int64
    low = 0
    for size in sizes:
        of_shard = slice(low, low + size)
        assert sorted(partner[of_shard].tolist()) == list(range(low, low + size))  # inside the shard, each once
        own = float(share[low])
        assert 0 <= own <= 1 and (share[of_shard] == own).all()
        first, second = inputs[of_shard], inputs[partner[of_shard]]
        blended = own * first + (1 - own) * second
        if not torch.equal(result[of_shard], blended):
            assert alpha[1] > 0
            assert_pasted(result[of_shard], first, second, own)
        low += size


def assert_pasted(result: torch.Tensor, first: torch.Tensor, second: torch.Tensor, own: float) -> None:
    """One rectangle of the second images in the first ones, as large as told."""
    kept = (result == first).all(1)
    assert torch.equal(torch.where(kept[:, None], first, second), result)
    moved = ~kept[(first != second).flatten(1).any(1)]  # an image that is its own partner shows no rectangle
    if len(moved):
        rows, columns = moved[0].any(1), moved[0].any(0)
        assert torch.equal(moved, (rows[:, None] & columns[None, :]).expand_as(moved))
        assert 1 - float(moved[0].double().mean()) == pytest.approx(own, abs=1e-12)
        for line in (rows, columns):
            assert int((line[1:] != line[:-1]).sum()) <= 2  # contiguous


@given(sizes=shards_of, alpha=alphas, first=st.integers(0, 9), data_=st.data())
def test_shards_are_mixed_alike_apart_and_together(sizes, alpha, first, data_):
    inputs, labels = data(sum(sizes))
    shards = tuple((first + n, size) for n, size in enumerate(sizes))
    batch = a_batch(labels.tolist(), shards, step=3)
    result, partner, share = mixed(inputs, batch, 5, mixup=alpha[0], cutmix=alpha[1])
    cut = data_.draw(st.integers(0, len(sizes)))
    for group in (shards[:cut], shards[cut:]):
        low = sum(size for shard, size in shards if group and shard < group[0][0])
        high = low + sum(size for _, size in group)
        piece = part(batch, low, high, group)
        own = mixed(inputs[low:high], piece, 5, mixup=alpha[0], cutmix=alpha[1])
        assert torch.equal(own[0], result[low:high])
        assert torch.equal(own[1] + low, partner[low:high])
        assert torch.equal(own[2], share[low:high])


def test_mixing_is_of_seed_step_and_shard_alone():
    inputs, labels = data(16)

    def mix(seed: int, step: int, shard: int, alpha=(0.4, 0.0)) -> bytes:
        batch = a_batch(labels.tolist(), ((shard, 16),), step=step)
        result, partner, share = mixed(inputs, batch, seed, mixup=alpha[0], cutmix=alpha[1])
        return b"".join(tensor.numpy().tobytes() for tensor in (result, partner, share))

    for alpha in ((0.4, 0.0), (0.0, 1.0), (0.3, 0.7)):
        first = mix(0, 0, 0, alpha)
        torch.manual_seed(99)
        assert mix(0, 0, 0, alpha) == first
        assert len({first, mix(1, 0, 0, alpha), mix(0, 1, 0, alpha), mix(0, 0, 1, alpha)}) == 4


def test_with_both_either_comes_by_turns():
    inputs, labels = data(8)
    cut = 0
    for step in range(200):
        batch = a_batch(labels.tolist(), step=step)
        result, partner, share = mixed(inputs, batch, 0, mixup=1.0, cutmix=1.0)
        own = share[:, None, None, None]
        cut += not torch.equal(result, own * inputs + (1 - own) * inputs[partner])
    assert 70 < cut < 130


@pytest.mark.parametrize("options", [{"mixup": 0.4}, {"cutmix": 1.0, "smoothing": 0.1}, {"mixup": 0.3, "cutmix": 0.7}])
def test_the_mixed_loss_weighs_both_labels(options):
    inputs, labels = data(12)
    batch = a_batch(labels.tolist(), ((2, 5), (3, 7)), step=4)
    task = Classify(**options)
    loss, logits = task.loss(net, inputs, batch, seed=1)
    blended, partner, share = mixed(inputs, batch, 1, mixup=task.mixup, cutmix=task.cutmix)
    assert torch.equal(logits, net(blended))
    expected = sum(
        share[n] * cross_entropy(logits[n : n + 1], labels[n : n + 1], task.smoothing)
        + (1 - share[n]) * cross_entropy(logits[n : n + 1], labels[partner[n]][None], task.smoothing)
        for n in range(12)
    )
    torch.testing.assert_close(loss, torch.as_tensor(expected).squeeze(), rtol=1e-12, atol=0)
