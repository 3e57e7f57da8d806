"""A snapshot is read again as it was written; what is none is told in a line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import safetensors.torch
import torch
from servers import SECRET

from shoal.base.errors import ShoalError
from shoal.kvstore.layout import Layout, Terms
from shoal.kvstore.positions import Handed
from shoal.kvstore.server import Server
from shoal.kvstore.snapshot import OfTable, Snapshot
from shoal.kvstore.table import Plan
from shoal.kvstore.updater import describe
from shoal.launch.ports import listen

SGD = describe(torch.optim.SGD([weight := torch.zeros(3)], lr=0.1, momentum=0.9), [weight])
TENSORS = {"0/values": torch.arange(3.0), "0/state/0.momentum_buffer.0": torch.ones(3)}


def written(path: Path) -> Snapshot:
    layout = Layout.of([("a", torch.zeros(3))])
    plan = Plan(layout=layout, low=0, high=3, optimizer=SGD, terms=Terms(mode="async"))
    applied = {0: ("first", 4), 2: ("third", 3)}
    table = OfTable(number=0, plan=plan, version=7, applied=applied, state=["0.momentum_buffer.0"])
    handed = Handed(next=5, again=[2], ahead=[], taken={0: [4], 2: [3]})
    snapshot = Snapshot(tables=[table], positions=handed, optimizer={})
    snapshot.write(path, TENSORS)
    return snapshot


def test_there_and_back(tmp_path: Path) -> None:
    path = tmp_path / "new" / "server-0"
    snapshot = written(path)
    read, tensors = Snapshot.read(path)
    assert read == snapshot
    assert {name: tensor.tolist() for name, tensor in tensors.items()} == {
        name: tensor.tolist() for name, tensor in TENSORS.items()
    }
    assert [file.name for file in path.parent.iterdir()] == ["server-0"]


@pytest.mark.parametrize("size", [0, 5, 100, -1])
def test_a_damaged_one(tmp_path: Path, size: int) -> None:
    path = tmp_path / "server-0"
    written(path)
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(ShoalError, match=r"server-0: no snapshot of a server, or a damaged one .*; remove it$"):
        Snapshot.read(path)


@pytest.mark.parametrize("lost", TENSORS)
def test_one_without_all_its_tensors(tmp_path: Path, lost: str) -> None:
    path = tmp_path / "server-0"
    written(path)
    with safetensors.safe_open(path, "pt") as file:
        about = file.metadata()
    rest = {name: tensor for name, tensor in TENSORS.items() if name != lost}
    safetensors.torch.save_file(rest, path, about)
    with pytest.raises(ShoalError, match=rf"server-0: no snapshot of a server, or a damaged one \(no {lost}"):
        Snapshot.read(path)


def test_another_programs_file(tmp_path: Path) -> None:
    safetensors.torch.save_file({"a": torch.ones(1)}, tmp_path / "model")
    with pytest.raises(ShoalError, match="model: no snapshot of a server"):
        Snapshot.read(tmp_path / "model")


@pytest.mark.parametrize(
    "change",
    [
        lambda about: about["tables"][0]["plan"].pop("layout"),
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
    with pytest.raises(ShoalError, match=r"server-0: a snapshot of another version of Shoal \(Object .*\); remove it$"):
        Snapshot.read(path)


def server(path: Path, told: list[str]) -> Server:
    return Server(listen("127.0.0.1", None), SECRET, 2, snapshot=path, tell=told.append)


def test_a_server_goes_on_from_it(tmp_path: Path) -> None:
    path, told = tmp_path / "server-0", []
    snapshot = written(path)
    there = server(path, told)
    assert told == ["server 0: goes on from its snapshot, version 7"]
    table = there.tables[0]
    assert table.applied == snapshot.tables[0].applied and there.positions.state() == snapshot.positions
    assert table.values.tolist() == [0, 1, 2]
    assert table.state()["0.momentum_buffer.0"].tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    "values",
    [None, torch.ones(2), torch.ones(3, dtype=torch.float64)],
    ids=["no values", "too few", "others"],
)
def test_values_that_do_not_fit(tmp_path: Path, values: torch.Tensor | None) -> None:
    path = tmp_path / "server-0"
    written(path)
    with safetensors.safe_open(path, "pt") as file:
        about = file.metadata()
    safetensors.torch.save_file({} if values is None else {"0/values": values}, path, about)
    with pytest.raises(
        ShoalError, match=r"server-0: no snapshot .* damaged one \(no 0/values of 3 numbers\); remove it$"
    ):
        Snapshot.read(path)


def test_an_optimizer_that_does_not_fit(tmp_path: Path) -> None:
    path = tmp_path / "server-0"
    written(path)
    with safetensors.safe_open(path, "pt") as file:
        about = json.loads(file.metadata()["shoal"])
    del about["tables"][0]["plan"]["optimizer"]["groups"]
    safetensors.torch.save_file(TENSORS, path, {"shoal": json.dumps(about)})
    with pytest.raises(ShoalError, match=r"server-0: no snapshot .* damaged one \('groups'\); remove it$"):
        server(path, [])


def test_training_goes_on_where_it_cannot_be_written(tmp_path: Path) -> None:
    path, told = tmp_path / "server-0", []
    written(path)
    there = server(path, told)
    path.unlink()
    path.mkdir()
    (path / "in the way").touch()
    there.save()
    assert told[-1].startswith("server 0: no snapshot (")
