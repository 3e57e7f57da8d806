"""A classifier sees images from outside as validation saw its own, whatever form they come in."""

from __future__ import annotations

import io
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from PIL import Image

from a_checkpoint import save_run
from shoal.base.run import Run
from shoal.data.batches import eval_chunks
from shoal.data.image import ImageError
from shoal.inference.classifier import Classifier, load
from shoal.train.restored import Restored
from small_images import class_folders, encoded, picture

RECIPE = """\
data: {name: folder, path: PATH, val_share: 0.5, augment: {size: 16}}
model: cifar-resnet8
optim: {name: sgd, lr: 0.1}
batch: 4
length: 1ep
"""


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return class_folders(tmp_path_factory.mktemp("images"), {"ant": 4, "bee": 4, "cat": 4})


@pytest.fixture(scope="module")
def run(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return save_run(tmp_path_factory.mktemp("run"), RECIPE.replace("PATH", str(images)))


@pytest.fixture(scope="module")
def classifier(run: Run) -> Classifier:
    return load(run.folder)


@pytest.mark.parametrize("change", ["augment.size=16", "image_size=20", "image_size=20 data.augment.crop=16"])
def test_the_logits_are_those_of_validation_bit_for_bit(run: Run, images: Path, tmp_path: Path, change: str):
    changes = [f"data.{word.removeprefix('data.')}" for word in change.split()]
    if "image_size" in change:
        changes.append("data.augment.size=null")
    other = save_run(tmp_path / "run", RECIPE.replace("PATH", str(images)), *changes)
    restored, classifier = Restored(other.folder), load(other.folder)
    val = restored.validation()
    ((_, batch),) = eval_chunks(val, restored.recipe.data.augment, 100)  # type: ignore[attr-defined]
    where = kept(restored)
    assert len(where) == 6
    prepared = classifier.prepare(*where)
    assert torch.equal(prepared, batch.images) and prepared.shape[1:] == classifier.shape
    assert torch.equal(classifier(prepared), restored.logits(batch))
    guesses = classifier.predict(where, top=3)
    for row, logits in zip(guesses, restored.logits(batch), strict=True):
        assert row[0].name == restored.classes[int(logits.argmax())]
        assert sum(guess.probability for guess in row) == pytest.approx(1)
        assert sorted(row, key=lambda guess: -guess.probability) == list(row)


def kept(restored: Restored) -> list[str]:
    """The files that a share of the training folder sets apart."""
    split = msgspec.structs.replace(restored.recipe.data, memory_gib=0.0).open("val")  # type: ignore[attr-defined]
    return [split.where(index) for index in range(len(split.labels))]


def test_every_form_of_the_same_image(classifier: Classifier, tmp_path: Path):
    pixels = picture(3, 24, 30)
    data, path = encoded(pixels), tmp_path / "x.png"
    path.write_bytes(data)
    tensor = torch.from_numpy(pixels.copy()).permute(2, 0, 1)
    forms = classifier.prepare(path, str(path), data, Image.open(io.BytesIO(data)), tensor)
    assert torch.equal(forms, forms[:1].expand_as(forms))


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "CMYK", "YCbCr", "HSV", "I;16"])
def test_odd_modes(classifier: Classifier, mode: str):
    grey = Image.fromarray(picture(1, 20)).convert("L")
    image = Image.fromarray(np.asarray(grey).astype(np.uint16) * 257) if mode == "I;16" else grey.convert(mode)
    assert image.mode == mode
    prepared = classifier.prepare(image).int()
    assert prepared.shape == (1, 3, 16, 16)
    if mode in ("L", "LA", "RGBA", "I;16"):
        assert torch.equal(prepared, classifier.prepare(grey).int())


def test_a_grey_model_takes_colours_and_other_sizes(tmp_path: Path):
    classifier = load(save_run(tmp_path / "run").folder)
    digit = torch.arange(64, dtype=torch.uint8).view(1, 8, 8)
    same = classifier.prepare(digit, Image.fromarray(digit[0].numpy()), digit.expand(3, -1, -1))
    assert torch.equal(same, digit.expand(3, 1, 8, 8))
    colours = torch.tensor([200, 100, 50], dtype=torch.uint8).view(3, 1, 1).expand(3, 8, 8)
    assert classifier.prepare(colours).unique().tolist() == [124]  # 0.299 x 200 + 0.587 x 100 + 0.114 x 50
    assert classifier.prepare(picture_tensor(20, 31)).shape == (1, 1, 8, 8)


def picture_tensor(height: int, width: int) -> torch.Tensor:
    return torch.from_numpy(picture(2, height, width).copy()).permute(2, 0, 1)


@pytest.mark.parametrize(
    ("image", "told"),
    [
        (b"", "image 1 is empty (0 bytes)"),
        (torch.zeros(3, 8, 8), "image 1 is float32 [3, 8, 8]; expected pixels, uint8 [1 or 3 channels, height, width]"),
        (torch.zeros(2, 8, 8, dtype=torch.uint8), "image 1 is uint8 [2, 8, 8]; expected "),
        (torch.zeros(3, 1, 500, dtype=torch.uint8), "image 1 has 500 x 1 px; one side is over 100 times the other"),
        (Image.new("F", (9, 9)), "image 1 holds 32-bit numbers"),
        ("no/such.jpg", "no/such.jpg cannot be read (No such file or directory)"),
    ],
)
def test_images_that_cannot_be_used_are_named(classifier: Classifier, image, told: str):
    for use in (
        lambda: classifier.prepare(picture_tensor(9, 9), image),
        lambda: classifier.predict([encoded(picture(1)), image]),
    ):
        with pytest.raises(ImageError) as caught:
            use()
        assert str(caught.value).startswith(told)


def test_batches_and_threads_change_nothing_but_bits_of_rounding(classifier: Classifier, images: Path):
    paths = [str(path) for path in sorted(images.rglob("*.jpg"))]
    paths.insert(5, "no.jpg")
    wanted = list(classifier.look(paths, top=3))
    assert [seen.fault is not None for seen in wanted] == [place == 5 for place in range(13)]
    for batch, threads in ((1, 1), (5, 3), (5, 0)):
        for seen, other in zip(classifier.look(paths, top=3, batch=batch, threads=threads), wanted, strict=True):
            assert [guess.name for guess in seen.guesses] == [guess.name for guess in other.guesses]
            assert [guess.probability for guess in seen.guesses] == pytest.approx(
                [guess.probability for guess in other.guesses], rel=1e-4
            )


def test_it_is_a_torch_module(run: Run, classifier: Classifier):
    assert not classifier.training and classifier.classes == ("ant", "bee", "cat")
    double = load(run.folder, device="cpu").to(torch.float64)
    pixels = classifier.prepare(picture_tensor(30, 30))
    torch.testing.assert_close(double(pixels), classifier(pixels).double(), rtol=1e-4, atol=1e-4)
    assert double(pixels).dtype == torch.float64
    assert all(parameter.requires_grad for parameter in classifier.parameters())
