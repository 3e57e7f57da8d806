"""A snapshot is read again as it was written; what is none is told in a line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import safetensors.torch
import torch

from shoal.base.errors import UsageError
from shoal.kvstore.layout import Layout, Terms
from shoal.kvstore.snapshot import OfTable, Snapshot
from shoal.kvstore.table import Plan


def written(path: Path) -> Snapshot:
    layout = Layout.of([("a", torch.zeros(3))])
    plan = Plan(layout=layout, low=0, high=3, optimizer={"name": "sgd"}, terms=Terms(mode="async"))
    table = OfTable(number=0, plan=plan, version=7, applied={0: ("first", 4), 2: ("third", 3)})
    snapshot = Snapshot(tables=[table], positions={"next": 5}, optimizer={})
    snapshot.write(path, {"0/values": torch.arange(3.0), "0/state/buffer": torch.ones(3)})
    return snapshot


def test_there_and_back(tmp_path: Path) -> None:
    path = tmp_path / "new" / "server-0"
    snapshot = written(path)
    read, tensors = Snapshot.read(path)
    assert read == snapshot
    assert {name: tensor.tolist() for name, tensor in tensors.items()} == {
        "0/values": [0, 1, 2],
        "0/state/buffer": [1, 1, 1],
    }
    assert [file.name for file in path.parent.iterdir()] == ["server-0"]


@pytest.mark.parametrize("size", [0, 5, 100, -1])
def test_a_damaged_one(tmp_path: Path, size: int) -> None:
    path = tmp_path / "server-0"
    written(path)
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(UsageError, match=r"server-0: no snapshot of a server, or a damaged one .*; remove it$"):
        Snapshot.read(path)


def test_another_programs_file(tmp_path: Path) -> None:
    safetensors.torch.save_file({"a": torch.ones(1)}, tmp_path / "model")
    with pytest.raises(UsageError, match="model: no snapshot of a server"):
        Snapshot.read(tmp_path / "model")


@pytest.mark.parametrize(
    "change",
    [
        lambda about: about["tables"][0]["plan"]["terms"].pop("mode") and about["tables"][0]["plan"].pop("layout"),
        lambda about: about["tables"][0]["plan"]["terms"].update(damping=2),
        lambda about: about.pop("positions"),
    ],
    ids=["lacking", "unknown", "lacking above"],
)
def test_another_versions(tmp_path: Path, change) -> None:
    path = tmp_path / "server-0"
    written(path)
    with safetensors.safe_open(path, "pt") as file:
        about = json.loads(file.metadata()["shoal"])
    change(about)
    safetensors.torch.save_file({"0/values": torch.ones(3)}, path, {"shoal": json.dumps(about)})
    with pytest.raises(UsageError, match=r"server-0: a snapshot of another version of Shoal \(Object .*\); remove it$"):
        Snapshot.read(path)
