"""Exported files compute what the model computes, for any number of images, and say what one must know to use them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from a_checkpoint import save_run
from shoal.base.errors import ShoalError, UsageError
from shoal.base.run import Run
from shoal.inference.classifier import Classifier, load
from shoal.inference.export import Exported, export
from shoal.inference.formats import onnx as to_onnx
from shoal.inference.formats import traced
from shoal.models.weights import load_pretrained
from shoal.train.restored import Restored

PIXELS = torch.randint(0, 256, (7, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return save_run(tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def classifier(run: Run) -> Classifier:
    return load(run.folder, device="cpu")


def exported(run: Run, to: str, path: Path, **options: bool) -> Exported:
    made = export(Restored(run.folder, device=torch.device("cpu")), to, path, **options)
    assert made.path == path and [entry.name for entry in path.parent.iterdir()] == [path.name]
    return made


def assert_told(metadata: dict[str, str], *, inside: bool) -> None:
    assert json.loads(metadata["classes"]) == list("0123456789")
    told = json.loads(metadata["preprocessing"])
    assert told["mean"] == [77.9] and told["std"] == [95.89] and told["normalised_inside"] is inside
    assert metadata["input"] == f"images: {'uint8' if inside else 'float32'} [batch, 1, 8, 8]"
    assert (metadata["model"], metadata["step"]) == ("digits-cnn", "5")


@torch.no_grad()
def test_onnx(run: Run, classifier: Classifier, tmp_path: Path):
    onnx, onnxruntime = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    made = exported(run, "onnx", tmp_path / "x.onnx")
    assert made.difference < 1e-5 and made.images == "64 validation images"
    session = onnxruntime.InferenceSession(made.path)
    for count in (1, 2, 7):
        (logits,) = session.run(None, {"images": PIXELS[:count].numpy()})
        torch.testing.assert_close(torch.from_numpy(logits), classifier(PIXELS[:count]), rtol=1e-5, atol=1e-5)
    model = onnx.load(made.path)
    onnx.checker.check_model(model, full_check=True)
    assert_told({item.key: item.value for item in model.metadata_props}, inside=True)


def test_int8_tells_both_accuracies(run: Run, tmp_path: Path):
    onnx = pytest.importorskip("onnx")
    made = exported(run, "onnx", tmp_path / "x.onnx", int8=True)
    assert made.scores is not None and {score.count for score in made.scores} == {100}
    assert 0 < made.difference < 1
    model = onnx.load(made.path)
    assert {"ConvInteger", "MatMulInteger"} <= {node.op_type for node in model.graph.node}
    assert_told({item.key: item.value for item in model.metadata_props}, inside=True)


@torch.no_grad()
def test_torch_export(run: Run, classifier: Classifier, tmp_path: Path):
    made = exported(run, "torch-export", tmp_path / "x.pt2")
    files = {"metadata.json": ""}
    loaded = torch.export.load(made.path, extra_files=files).module()
    for count in (1, 2, 7):
        torch.testing.assert_close(loaded(PIXELS[:count]), classifier(PIXELS[:count]), rtol=1e-5, atol=1e-5)
    assert_told(json.loads(files["metadata.json"]), inside=True)


def test_safetensors_are_weights_to_begin_from(run: Run, classifier: Classifier, tmp_path: Path):
    made = exported(run, "safetensors", tmp_path / "x.safetensors")
    with safe_open(made.path, "pt") as file:
        assert_told(file.metadata(), inside=False)
    other = load(run.folder, device="cpu")
    torch.nn.init.zeros_(next(other.model.parameters()))
    load_pretrained(other.model, made.path)
    assert torch.equal(other(PIXELS), classifier(PIXELS))


def test_without_validation_images_noise_has_to_do(run: Run, tmp_path: Path):
    import shutil

    moved = Run(tmp_path / "moved")
    shutil.copytree(run.folder, moved.folder)
    manifest = moved.checkpoint(5) / "manifest.json"
    told = json.loads(manifest.read_text())
    told["recipe"]["data"] = {"name": "cifar10", "path": "gone"}
    manifest.write_text(json.dumps(told))
    restored = Restored(moved.folder, device=torch.device("cpu"))
    (tmp_path / "out").mkdir()
    assert export(restored, "safetensors", tmp_path / "out/x.safetensors").images == "64 images of noise"
    with pytest.raises(ShoalError, match="gone: "):
        export(restored, "onnx", tmp_path / "out/x.onnx", int8=True)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["x.safetensors"]


class Decomposes(torch.nn.Module):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return torch.linalg.svd(images.float())[1].sum((1, 2))[:, None]


class Decides(torch.nn.Module):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if images.sum() > 3:
            return images.float().mean((2, 3))
        return images.float().amax((2, 3))


def test_an_operator_that_onnx_lacks_is_named(tmp_path: Path):
    pytest.importorskip("onnxscript")
    with pytest.raises(ShoalError) as caught:
        to_onnx.write(Decomposes(), PIXELS, tmp_path / "x.onnx", {})
    assert str(caught.value) == "this model cannot be exported to ONNX: it has no operator aten._linalg_svd.default"
    assert not (tmp_path / "x.onnx").exists()


def test_a_model_that_decides_by_its_images_is_named_with_its_line(capfd: pytest.CaptureFixture):
    line = Decides.forward.__code__.co_firstlineno + 1
    with pytest.raises(ShoalError, match=rf"torch\.export stops at .*test_export\.py:{line} \(Could not guard on data"):
        traced(Decides(), PIXELS)
    assert capfd.readouterr() == ("", "")


def test_a_file_that_computes_something_else_is_not_kept(run: Run, tmp_path: Path, monkeypatch):
    from shoal.inference.formats import safetensors

    monkeypatch.setattr(safetensors, "reader", lambda graph, path: lambda images: graph(images) + 1)
    with pytest.raises(ShoalError, match="computes something else than the model: logits differ by 1"):
        export(Restored(run.folder), "safetensors", tmp_path / "x.safetensors")
    assert list(tmp_path.iterdir()) == []


def test_what_onnx_needs(run: Run, tmp_path: Path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "onnx", None)
    with pytest.raises(UsageError, match=r"--to onnx needs the package onnx: pip install 'shoal\[export\]'"):
        export(Restored(run.folder), "onnx", tmp_path / "x.onnx")
    assert list(tmp_path.iterdir()) == []
