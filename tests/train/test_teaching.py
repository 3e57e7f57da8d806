"""Teachers from every place they may come from, and why one does not fit; soft labels made by any number of workers."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from a_checkpoint import DIGITS, save_run
from gangs import GangPool
from shoal.base.errors import ShoalError, UsageError
from shoal.data.batches import Batches
from shoal.models import Model, create
from shoal.recipe.load import parse
from shoal.step.distilling import Taught
from shoal.step.gang import Alone, Gang
from shoal.train.setup import Data, Setup, cut_of, manifest, open_data
from shoal.train.teacher import check_teacher
from shoal.train.teaching import taught
from small_images import class_folders

FEW = ["data.limit=60", "task=distill"]


def recipe_of(*overrides: str, text: str = DIGITS) -> Any:
    return parse(text, "recipe.yaml", [*FEW, *overrides]).recipe


def said(gang: Gang, *overrides: str) -> tuple[torch.Tensor, str]:
    """What the teacher says of the first step's images, and the SHA-256 of its weights."""
    recipe = recipe_of(*overrides)
    data = open_data(recipe)
    task, known = taught(recipe, data, gang)
    assert isinstance(task, Taught) and known is not None
    cut = cut_of(recipe, len(data.train.labels), Alone())
    (batch,) = Batches(data.train, recipe.data.augment, cut, thread=False).prepare(0)
    held = task.says(batch)
    if held.chosen is not None:  # in the order of classes, those not kept left out
        whole = torch.full((len(held.logs), data.classes), -torch.inf)
        return whole.scatter(1, held.chosen, held.logs[:, : held.chosen.shape[1]]), known.weights
    return held.logs, known.weights


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_run(tmp_path_factory.mktemp("teacher") / "run").folder


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The weights of the run's model."""
    net = create(Model(name="digits-cnn"), classes=10, channels=1, seed=0).module
    torch.save({"state_dict": {f"module.{key}": value for key, value in net.state_dict().items()}}, tmp_path / "w.pth")
    return tmp_path / "w.pth"


# Where a teacher comes from


def test_a_run_its_checkpoint_and_the_same_weights_in_a_file(run, file):
    logs, weights = said(Alone(), f"task.teacher.run={run}")
    checkpoint = next((run / "checkpoints").glob("step-*"))
    named = ["task.teacher.model=digits-cnn", f"task.teacher.pretrained={file}"]
    for other in ([f"task.teacher.run={checkpoint}"], named):
        again, same = said(Alone(), *other)
        assert torch.equal(again, logs) and same == weights
    torch.testing.assert_close(logs.exp().sum(1), torch.ones(20))


def fault(*overrides: str, text: str = DIGITS, kind: type[ShoalError] = UsageError) -> str:
    recipe = recipe_of(*overrides, text=text)
    with pytest.raises(kind) as caught:
        taught(recipe, open_data(recipe), Alone())
    assert "\n" not in str(caught.value) and type(caught.value) is kind
    return str(caught.value)


def test_teachers_that_are_not_there(tmp_path):
    assert fault(f"task.teacher.run={tmp_path / 'no'}") == f"task.teacher.run: {tmp_path / 'no'}: no such folder"
    told = fault("task.teacher.model=digits-cnn", f"task.teacher.pretrained={tmp_path / 'no.pt'}")
    assert told == f"task.teacher.pretrained: no file {tmp_path / 'no.pt'}"


def test_teachers_of_other_classes(run, tmp_path):
    class_folders(tmp_path / "train", {"cat": 2, "dog": 2}, sizes=((8, 8),))
    class_folders(tmp_path / "val", {"cat": 1, "dog": 1}, sizes=((8, 8),))
    text = DIGITS.replace("name: digits, limit: 100", f"name: folder, path: {tmp_path}").replace(
        "batch: 20", "batch: 4"
    )
    told = fault(f"task.teacher.run={run}", text=text)
    assert told.endswith("tells 10 classes apart, the data has 2")
    net = create(Model(name="digits-cnn"), classes=7, channels=1, seed=0).module
    torch.save(net.state_dict(), tmp_path / "seven.pt")
    told = fault("task.teacher.model=digits-cnn", f"task.teacher.pretrained={tmp_path / 'seven.pt'}")
    assert told.startswith("task.teacher: other classes than the data's 10: head.weight (weights [7, 64]")


def test_the_same_number_of_other_classes(run, tmp_path):
    for split in ("train", "val"):
        class_folders(tmp_path / split, {f"kind-{number}": 2 for number in range(10)}, sizes=((8, 8),))
    text = DIGITS.replace("name: digits, limit: 100", f"name: folder, path: {tmp_path}")
    told = fault(f"task.teacher.run={run}", text=text)
    assert told.endswith("has other classes than the data: class 0 is '0' there and 'kind-0' here")


def test_a_pickle_is_not_run(tmp_path):
    class Evil:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "harm",))

    (tmp_path / "evil.pt").write_bytes(pickle.dumps({"w": Evil()}, protocol=2))
    told = fault("task.teacher.model=digits-cnn", f"task.teacher.pretrained={tmp_path / 'evil.pt'}", kind=ShoalError)
    assert told.startswith(f"task.teacher.pretrained: cannot read {tmp_path / 'evil.pt'}: ")
    assert not (tmp_path / "harm").exists()


def test_another_teacher_is_refused_at_a_resume(run, tmp_path):
    recipe = recipe_of(f"task.teacher.run={run}")
    data = open_data(recipe)
    one = Setup.of(recipe, Alone(), data).teacher
    assert one is not None
    saved = manifest(recipe, "small", data, 1, one)
    check_teacher(saved, one, Path("step-5"))
    other = save_run(tmp_path / "other", DIGITS, "seed=1").folder
    two = Setup.of(recipe_of(f"task.teacher.run={other}"), Alone(), data).teacher
    with pytest.raises(UsageError, match=r"step-5 learnt from digits-cnn of .* another teacher makes another training"):
        check_teacher(saved, two, Path("step-5"))


def of_own_host(gang: Gang, folder: str) -> str:
    try:
        said(gang, f"task.teacher.run={folder}/{gang.rank}")
    except ShoalError as error:
        return str(error)
    return ""


def test_hosts_with_different_teachers(gang_pool: GangPool, tmp_path):
    for seed in (0, 1):
        save_run(tmp_path / str(seed), DIGITS, f"seed={seed}")
    first, second = gang_pool.run(of_own_host, 2, str(tmp_path))
    assert first == "" and "holds other weights on this host" in second


# Soft labels


def test_any_number_of_workers_makes_the_same_file(gang_pool: GangPool, run, tmp_path):
    asked, _ = said(Alone(), f"task.teacher.run={run}")
    files = []
    for n in (1, 2, 3):
        path = tmp_path / f"{n}.soft"
        words = [f"task.teacher.run={run}", f"task.cache={path}", "task.top_k=4"]
        made = gang_pool.run(said, n, *words)
        assert all(torch.equal(one, made[0][0]) for one, _ in made)
        assert torch.equal(said(Alone(), *words)[0], made[0][0])  # read, now
        files.append(path.read_bytes())
    assert files[0] == files[1] == files[2]
    kept = np.argsort(-asked.numpy(), 1, kind="stable")[:, :4]
    np.testing.assert_allclose(
        np.take_along_axis(made[0][0].numpy(), kept, 1), np.take_along_axis(asked.numpy(), kept, 1), atol=2e-3
    )
    assert (made[0][0] > -torch.inf).sum(1).tolist() == [4] * 20


def test_soft_labels_of_others_or_damaged(run, tmp_path):
    path = tmp_path / "x.soft"
    words = [f"task.teacher.run={run}", f"task.cache={path}"]
    said(Alone(), *words)
    assert fault(*words, "data.limit=61").startswith(f"task.cache: {path} was made for other images than this training")
    assert fault(*words, "task.temperature=2").startswith(f"task.cache: {path} was made for other temperature")
    held = bytearray(path.read_bytes())
    held[-3] ^= 4
    path.write_bytes(held)
    assert f"task.cache: {path} is damaged, or holds no soft labels (its checksum is wrong)" in fault(
        *words, kind=ShoalError
    )
    path.write_bytes(b"")
    assert fault(*words, kind=ShoalError).startswith(f"task.cache: {path} is empty")


@pytest.mark.parametrize("augment", ["pad=1", "mirror=true", "crop=7", "size=8", "mirror=alternate"])
def test_soft_labels_need_images_that_stay_as_they_are(run, tmp_path, augment):
    words = [f"task.teacher.run={run}", f"task.cache={tmp_path / 'x.soft'}", f"data.augment.{augment}"]
    told = fault(*words)
    assert told.startswith(f"task.cache: data.augment.{augment.partition('=')[0]} has images look otherwise")
    assert not (tmp_path / "x.soft").exists()


# Images without a label


def test_labels_are_needed_without_a_teacher(run, tmp_path):
    class_folders(tmp_path / "train", {"a": 2, "b": 3})
    class_folders(tmp_path / "val", {"a": 1, "b": 1})
    class_folders(tmp_path / "more", {"x": 2})
    text = DIGITS.replace(
        "name: digits, limit: 100", f"name: folder, path: {tmp_path}, image_size: 8, unlabelled: {tmp_path / 'more'}"
    )
    with pytest.raises(UsageError) as caught:
        open_data(parse(text, "recipe.yaml").recipe)
    assert str(caught.value) == (
        "data: folder, train image 5 has no label (nor have 1 more), and task classify learns from labels alone; leave "
        "such images out, or give them a teacher (task=distill)"
    )
    opened = open_data(parse(text, "recipe.yaml", ["task=distill", f"task.teacher.run={run}"]).recipe)
    assert isinstance(opened, Data) and opened.train.labels.tolist() == [0, 0, 1, 1, 1, -1, -1]
