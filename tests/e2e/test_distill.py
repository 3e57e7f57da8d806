"""A student and its teacher as people start them: the same bits from any workers, resumed or not; what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from figures import bits
from warm import warm

from shoal.base.run import Run
from small_images import jpeg, write_rec

SMALL = """\
data: {name: recordio, path: DATA, memory_gib: 1, eval_batch: 8}
model: cifar-resnet8
task: {name: distill, teacher: {run: TEACHER}, temperature: 2, label_weight: 0.5}
optim: {name: sgd, lr: 0.05, momentum: 0.9}
batch: 8
shards: 4
length: 2ep
ema: {half_life: 1ep}
save_every: 2st
log_every: 2st
strategy: {name: ddp, deterministic: true}
"""
LABELS = [*[0, 1, 2, 0, 1, 2], *[-1] * 5, *[0, 1, 2, 0, 1, 2, 0]]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few images, a third of them without a label in the student's file; a teacher; the student's recipe."""
    base = tmp_path_factory.mktemp("distill")
    images = [jpeg(number) for number in range(len(LABELS))]
    for name, labels in (("known", [label % 3 for label in LABELS]), ("some", LABELS)):
        write_rec(base / name / "train.rec", images, labels)
        write_rec(base / name / "val.rec", images[:9], [0, 1, 2] * 3)
    text = SMALL.replace("TEACHER", str(base / "teacher"))
    (base / "teacher.yaml").write_text(text.replace("DATA", str(base / "known")))
    (base / "student.yaml").write_text(text.replace("DATA", str(base / "some")))
    result = warm(base, "train", base / "teacher.yaml", "task=classify", "length=2st", "--run", base / "teacher")
    assert result.code == 0, result
    return base


@pytest.fixture(scope="module")
def student(base: Path) -> Run:
    result = warm(base, "train", base / "student.yaml", "--run", base / "student")
    assert result.code == 0, result
    assert f"Teacher  cifar-resnet8 of {base / 'teacher'}" in result.err
    return Run(base / "student")


def test_every_image_counts_once_and_labels_where_they_are(student: Run) -> None:
    (start,), (end,) = student.metrics("start"), student.metrics("end")
    assert start["images_per_epoch"] == len(LABELS) and end["images"] == 2 * len(LABELS)
    for epoch in student.metrics("epoch"):
        known = len(LABELS) - 5
        assert epoch["top1"] * known == pytest.approx(round(epoch["top1"] * known), abs=1e-9)
        whole = epoch["loss_distill"] + 0.5 * epoch["loss_label"] * known / len(LABELS)
        assert epoch["loss"] == pytest.approx(whole, rel=1e-9)
        assert epoch["loss_distill"] > 0
    assert start["teacher"]["name"] == "cifar-resnet8"
    assert "cifar-resnet8 of" in student.report.read_text()


@pytest.mark.parametrize("n", [2, 3])
def test_the_same_bits_from_any_number_of_workers_killed_and_resumed(
    student: Run, base: Path, tmp_path: Path, n: int
) -> None:
    args = ("train", base / "student.yaml", "--run", tmp_path / "run")
    assert warm(tmp_path, *args, "length=3st", n=n).code == 0
    result = warm(tmp_path, *args, "--allow", "length", n=5 - n)
    assert result.code == 0, result
    assert bits(tmp_path / "run")["model"] == bits(student.folder)["model"]


def test_soft_labels_stand_for_the_teacher(student: Run, base: Path, tmp_path: Path) -> None:
    cache = base / "x.soft"
    for run in ("made", "read"):
        args = ("train", base / "student.yaml", f"task.cache={cache}", "--run", tmp_path / run)
        assert warm(tmp_path, *args, n=2 if run == "made" else 1).code == 0
    assert bits(tmp_path / "made")["model"] == bits(tmp_path / "read")["model"]
    asked, kept = student.metrics("train")[0], Run(tmp_path / "read").metrics("train")[0]
    assert kept["loss_distill"] == pytest.approx(asked["loss_distill"], rel=0.01)  # in half precision


def test_what_is_refused(student: Run, base: Path, tmp_path: Path) -> None:
    def refused(*words: str | Path, code: int = 2) -> str:
        result = warm(tmp_path, "train", base / "student.yaml", "--run", tmp_path / "new", *words)
        assert result.code == code and "Traceback" not in result.err, result
        return result.err

    assert "task learns" not in refused("task.temperature=0")
    assert "train image 6 has no label (nor have 4 more), and task classify learns" in refused("task=classify")
    assert "task.teacher.run: " in (told := refused(f"task.teacher.run={tmp_path / 'no'}")) and "no such folder" in told
    other = warm(tmp_path, "train", base / "teacher.yaml", "task=classify", "length=1st", "--run", tmp_path / "other")
    assert other.code == 0, other
    words = (f"task.teacher.run={tmp_path / 'other'}", "length=20st", "--allow", "length", "--run", student.folder)
    assert "another teacher makes another training" in refused(*words)
