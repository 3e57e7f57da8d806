"""Training on a CUDA device: run by benchmarks/gpu.sh where there is one."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.gpu


def train(folder: Path, *overrides: str) -> dict:
    """Trains the digits in one process; the event it ends with."""
    argv = [sys.executable, "-m", "shoal", "train", "digits", "-n", "1", "--run", str(folder), *overrides]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])


@pytest.mark.parametrize("precision", ["fp32", "bf16", "O1", "O2"])
def test_digits_are_learned_on_a_gpu(tmp_path, precision):
    end = train(tmp_path / "run", f"precision={precision}", "ema.half_life=1ep", "task.mixup=0.1", "model.drop=0.1")
    assert end["top1"] > 0.96
    assert json.loads((tmp_path / "run" / "environment.json").read_text())["device"] != "cpu"


def test_deterministic_training_gives_the_same_bits_twice(tmp_path):
    for name in ("a", "b"):
        train(tmp_path / name, "strategy.deterministic=true", "length=2ep")
    a, b = (tmp_path / name / "checkpoints" / "step-00000046" / "model.safetensors" for name in ("a", "b"))
    assert a.read_bytes() == b.read_bytes()


def test_a_killed_training_goes_on_to_the_same_bits(tmp_path):
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    train(whole, "strategy.deterministic=true", "length=2ep", "schedule=constant")
    train(halves, "strategy.deterministic=true", "length=1ep", "schedule=constant")
    argv = ["digits", "-n", "1", "--run", str(halves), "strategy.deterministic=true", "length=2ep", "schedule=constant"]
    subprocess.run([sys.executable, "-m", "shoal", "train", *argv, "--allow", "length"], check=True, timeout=200)
    a, b = (folder / "checkpoints" / "step-00000046" / "model.safetensors" for folder in (whole, halves))
    assert a.read_bytes() == b.read_bytes()


def test_the_device_counts_as_the_cpu_counts(device):
    import torch

    from shoal.step.meters import hits

    logits = torch.randint(0, 4, (256, 10)).float()  # many ties
    labels = torch.randint(-1, 10, (256,))
    assert torch.equal(hits(logits.to(device), labels.to(device)).cpu(), hits(logits, labels))


def test_a_number_that_is_not_finite_is_named_late_but_named(tmp_path):
    argv = ["digits", "-n", "1", "--run", str(tmp_path / "run"), "optim.lr=1e20", "length=1ep"]
    done = subprocess.run(
        [sys.executable, "-m", "shoal", "train", *argv], capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 1
    assert "first non-finite tensor" in done.stderr


def test_batches_come_to_the_device_on_a_stream_of_their_own(device):
    """Whichever of the two streams lags behind."""
    import torch

    from shoal.base.duration import Span
    from shoal.data.augment import Augment
    from shoal.data.batches import Batches, Cut
    from shoal.data.sources.synthetic import Synthetic
    from shoal.data.upload import Upload

    class Slow(Upload):
        def __call__(self, tensors):
            with torch.cuda.stream(self._stream):
                torch.cuda._sleep(20_000_000)
            return super().__call__(tensors)

    data = Synthetic(images=512, classes=10, channels=3, size=64).open("train")
    cut = Cut(Span(len(data.labels), 64), 1, seed=0)
    expected = [batch for (batch,) in Batches(data, Augment(mirror=True), cut).steps(0, 40)]
    matrix = torch.zeros(4096, 4096, device=device)
    for upload, lagging in ((Slow(device), False), (Upload(device), True)):
        found = []
        for (batch,) in Batches(data, Augment(mirror=True), cut, upload=upload).steps(0, 40):
            if lagging:
                matrix = matrix @ matrix
            here = batch.to(device)
            assert here.images.device == device
            found.append((here.images.clone(), here.labels.clone()))
        for (images, labels), other in zip(found, expected, strict=True):
            assert torch.equal(images.cpu(), other.images)
            assert torch.equal(labels.cpu(), other.labels)


def test_a_thread_sends_to_the_last_device(device):
    from concurrent.futures import ThreadPoolExecutor

    import torch

    from shoal.data.upload import Upload

    last = torch.device("cuda", torch.cuda.device_count() - 1)
    with ThreadPoolExecutor(1) as pool:
        there, sent = pool.submit(Upload(last), (torch.arange(9),)).result()
    sent.arrive()
    assert there[0].device == last
    assert there[0].tolist() == list(range(9))
