"""The probe: short, real, and gone afterwards; what it cannot do it says in a line."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lag import Lag
from shoal.base.errors import ShoalError
from shoal.forecast import probe
from shoal.recipe.load import load


@pytest.mark.slow
def test_what_a_probe_finds(lag: Lag) -> None:
    recipe = load("digits", ["strategy=ps", "strategy.threads=1"]).recipe
    found = probe.measure(recipe, [8, 128], together=2, servers=True, compute_s=1.0, limit_s=280)
    assert found.parameters == 33_338 and found.gradient_bytes == 4 * 33_338
    assert (found.images_per_epoch, found.val_images) == (1438, 359)
    assert sum(size for size, _ in found.gradients) == found.gradient_bytes
    whens = [when for _, when in found.gradients]
    assert 0 < found.forward < whens[0] and whens == sorted(whens) and 0.9 < whens[-1] <= 1
    assert found.uneven >= 0 and 0 <= found.bucket_s < found.shard(128)
    assert found.core_hop_s > 0 and found.core_byte_s > 0
    assert 0 < found.shard(8) < found.shard(128) < lag.allows(1.0)
    for name in ("update_s", "load_image_s", "eval_image_s", "save_s", "hop_s", "sum_byte_s", "call_s", "serve_byte_s"):
        assert 0 < getattr(found, name) < lag.allows(1.0), name
    assert "2 computed" in found.source


@pytest.mark.slow
def test_data_that_is_not_here_is_told_as_a_training_would(tmp_path: Path) -> None:
    recipe = load("cifar10-resnet8", [f"data.path={tmp_path}"]).recipe
    with pytest.raises(ShoalError, match="probe needs the recipe's data") as error:
        probe.measure(recipe, [32], compute_s=1.0)
    assert str(tmp_path) in str(error.value) and "\n" not in str(error.value)


@pytest.mark.skipif(sys.platform != "linux", reason="leashes are Linux's")
def test_nothing_is_left_when_the_command_is_killed(tmp_path: Path) -> None:
    words = ["forecast", "digits", "-n", "2", "--link", "1Gbps"]
    command = subprocess.Popen(
        [sys.executable, "-m", "shoal", *words], stderr=subprocess.DEVNULL, env={**os.environ, "TMPDIR": str(tmp_path)}
    )
    children = Path(f"/proc/{command.pid}/task/{command.pid}/children")
    until = time.monotonic() + 30
    while len(found := children.read_text().split()) < 2:
        assert time.monotonic() < until and command.poll() is None
        time.sleep(0.01)
    command.kill()
    command.wait()
    while any(
        Path(f"/proc/{pid}/cmdline").exists() and b"probing" in Path(f"/proc/{pid}/cmdline").read_bytes()
        for pid in found
    ):
        assert time.monotonic() < until, "processes of the probe live on"
        time.sleep(0.01)
