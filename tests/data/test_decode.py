"""Images decoded: one by one, all at once, in batches by any number of threads; and every image that is none."""

from __future__ import annotations

import io
import struct
import zlib
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from shoal.base.duration import Span
from shoal.data.augment import Augment
from shoal.data.augment.affine import Affine
from shoal.data.augment.crops import Crops
from shoal.data.augment.erase import Erase
from shoal.data.batches import Batches, Cut, eval_chunks
from shoal.data.cache import in_memory
from shoal.data.decode import Pictures
from shoal.data.image import ImageError, centred, decode, linearly, resized
from shoal.data.source import NO_IMAGE, Held, SourceError, Streamed
from small_images import encoded, jpeg, picture

GIB = 1 << 30


def pixels(data: bytes) -> np.ndarray:
    """uint8 [H, W, 3]."""
    image = decode(data)
    assert image.dtype == torch.uint8 and image.shape[0] == 3
    return image.permute(1, 2, 0).numpy()


def png_claiming(width: int, height: int) -> bytes:
    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", b"") + chunk(b"IEND", b"")


def changed(data: bytes, at: int, value: int) -> bytes:
    return data[:at] + bytes([value]) + data[at + 1 :]


def jpeg_claiming(width: int, height: int) -> bytes:
    data = bytearray(jpeg(0))
    at = data.index(b"\xff\xc0")
    data[at + 5 : at + 9] = struct.pack(">HH", height, width)
    return bytes(data)


PLAIN = picture(3, 24, 40)
GREY = PLAIN[..., 0]
FRAMES = [Image.fromarray(PLAIN), Image.fromarray(PLAIN[::-1].copy())]

BAD = {
    "zero bytes": (b"", "is empty (0 bytes)"),
    "no image": (b"hello, world", "is no image in a known format (begins with 68 65 6c 6c 6f 2c 20 77)"),
    "truncated jpeg": (jpeg(0)[:-200], "is a JPEG that cannot be decoded (Image is incomplete or truncated)"),
    "jpeg's first bytes": (jpeg(0)[:30], "is a JPEG that cannot be decoded (Image is incomplete or truncated)"),
    "jpeg of 12 bits": (
        changed(jpeg(0), jpeg(0).index(b"\xff\xc0") + 4, 12),
        "is a JPEG that cannot be decoded (Unsupported JPEG data precision 12)",
    ),
    "truncated png": (encoded(PLAIN)[:600], "cannot be decoded ("),
    "damaged png": (changed(encoded(PLAIN), 300, 0), "cannot be decoded ("),
    "animated gif": (encoded(FRAMES[0], "GIF", save_all=True, append_images=FRAMES[1:]), "has 2 frames; a still image"),
    "animated png": (encoded(FRAMES[0], "PNG", save_all=True, append_images=FRAMES[1:]), "has 2 frames; a still image"),
    "animated webp": (encoded(FRAMES[0], "WEBP", save_all=True, append_images=FRAMES[1:]), "has 2 frames"),
    "floats": (encoded(GREY.astype(np.float32), "TIFF"), "holds 32-bit numbers (Pillow's mode F)"),
    "gigantic jpeg": (
        jpeg_claiming(40_000, 30_000),
        "has 40000 x 30000 px, more than 89,478,485 in all; scale it down",
    ),
    "gigantic png": (png_claiming(12_000, 12_000), "has 12000 x 12000 px, more than 89,478,485"),
    "monstrous png": (png_claiming(100_000, 100_000), "has more than 89,478,485 pixels; scale it down"),
}
"""Images that are none, and what is said of them."""

bad_images = pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")


# One image


@pytest.mark.parametrize("form", ["PNG", "BMP", "TIFF", "PPM"])
def test_lossless_forms_are_read_to_the_last_bit(form):
    assert np.array_equal(pixels(encoded(PLAIN, form)), PLAIN)


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"subsampling": 2, "quality": 40}])
def test_jpegs_are_read_as_pillow_reads_them(options):
    data = encoded(PLAIN, "JPEG", **options)
    assert np.abs(pixels(data).astype(int) - np.asarray(Image.open(io.BytesIO(data)), int)).max() <= 1


def test_grey_becomes_three_equal_channels():
    for data in (encoded(GREY, "PNG"), encoded(Image.fromarray(GREY).convert("LA"), "PNG")):
        assert np.array_equal(pixels(data), np.stack([GREY] * 3, -1))
    jpeg_grey = pixels(encoded(GREY, "JPEG", quality=95))
    assert (jpeg_grey == jpeg_grey[..., :1]).all() and np.abs(jpeg_grey[..., 0].astype(int) - GREY).mean() < 3


def test_sixteen_bits_keep_their_upper_eight():
    deep = GREY.astype(np.uint16) * 256 + 37
    for form in ("PNG", "TIFF"):
        assert np.array_equal(pixels(encoded(deep, form)), np.stack([GREY] * 3, -1))


def test_cmyk_palettes_and_transparency_become_their_colours():
    plain = Image.fromarray(PLAIN)
    cmyk = pixels(encoded(plain.convert("CMYK"), "JPEG", quality=98))
    assert np.abs(cmyk.astype(int) - PLAIN).mean() < 6
    palette = plain.convert("P", palette=Image.Palette.ADAPTIVE)
    assert np.array_equal(pixels(encoded(palette, "GIF")), np.asarray(palette.convert("RGB")))
    seen_through = plain.copy()
    seen_through.putalpha(100)
    assert np.array_equal(pixels(encoded(seen_through, "PNG")), PLAIN)


@bad_images
@pytest.mark.parametrize("case", BAD)
def test_what_is_no_image_says_why_in_one_line(case):
    data, told = BAD[case]
    with pytest.raises(ImageError) as caught:
        decode(data)
    assert str(caught.value).startswith(told) and "\n" not in str(caught.value)


@given(data=st.binary(max_size=300), start=st.sampled_from([b"", b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF89a"]))
@settings(max_examples=50)
def test_random_bytes_are_no_image(data, start):
    with pytest.raises(ImageError):
        decode(start + data)


def test_validation_is_what_torchvision_makes_of_it():
    from torchvision.transforms import v2

    for height, width in ((40, 60), (61, 33), (32, 32)):
        image = decode(jpeg(1, height, width))
        theirs = v2.Compose([v2.Resize(28, antialias=True), v2.CenterCrop(24)])(image)
        assert torch.equal(centred(image, 28, 24), theirs)


# Crops


@given(
    height=st.integers(1, 50),
    width=st.integers(1, 50),
    scale=st.sampled_from([(0.08, 1.0), (0.9, 1.0), (0.01, 0.02)]),
    ratio=st.sampled_from([(0.75, 1.3333), (1.0, 1.0), (8.0, 9.0)]),
    seed=st.integers(0, 5),
)
def test_crops_lie_in_the_image_and_belong_to_the_sample(height, width, scale, ratio, seed):
    many = Crops(np.arange(9), 8, scale, ratio, mirror=True, seed=seed, epoch=2)
    some = Crops(np.array([7, 3]), 8, scale, ratio, mirror=True, seed=seed, epoch=2)
    boxes = [many.box(place, height, width) for place in range(9)]
    for top, left, tall, wide in boxes:
        assert 0 <= top < top + tall <= height and 0 <= left < left + wide <= width
    assert [some.box(0, height, width), some.box(1, height, width)] == [boxes[7], boxes[3]]


def test_crops_are_spread_as_asked():
    crops = Crops(np.arange(4000), 8, (0.25, 0.75), (0.5, 2.0), mirror=True, seed=1, epoch=0)
    boxes = np.array([crops.box(place, 400, 400) for place in range(4000)])
    area, ratio = boxes[:, 2] * boxes[:, 3] / 400**2, boxes[:, 3] / boxes[:, 2]
    assert area.min() > 0.24 and area.max() < 0.76 and 0.46 < area.mean() < 0.51
    assert ratio.min() > 0.49 and ratio.max() < 2.02 and abs(np.log(ratio).mean()) < 0.02
    room = 400 - boxes[:, 2] > 0
    assert abs((boxes[room, 0] / (400 - boxes[room, 2])).mean() - 0.5) < 0.02


def test_a_crop_is_the_part_resized_and_sometimes_mirrored():
    image = decode(jpeg(5, 50, 70))
    crops = Crops(np.arange(40), 16, (0.08, 1.0), (0.75, 1.3333), mirror=True, seed=0, epoch=0)
    mirrored = 0
    for place in range(40):
        top, left, tall, wide = crops.box(place, 50, 70)
        part = resized(image[:, top : top + tall, left : left + wide], 16, 16)
        cut = crops.cut(place, image)
        assert cut.shape == (3, 16, 16) and cut.dtype == torch.uint8
        mirrored += torch.equal(cut, part.flip(2)) and not torch.equal(cut, part)
    assert 10 < mirrored < 30


def test_linear_looks_at_four_pixels_and_antialias_at_all():
    pytest.importorskip("cv2")
    image = torch.zeros(3, 64, 64, dtype=torch.uint8)
    image[:, :, ::8] = 255  # fine stripes
    assert linearly(image, 8, 8).unique().numel() == 1 and int(resized(image, 8, 8).float().mean()) in range(28, 36)
    one = linearly(image[:1, :32], 16, 24)
    assert one.shape == (1, 16, 24) and one.dtype == torch.uint8
    large = torch.from_numpy(picture(4, 30, 20)).permute(2, 0, 1)
    difference = linearly(large, 60, 40).int() - resized(large, 60, 40).int()  # nothing to alias where it grows
    assert difference.abs().max() <= 1


@pytest.mark.parametrize("filter", ["antialias", "linear"])
def test_batches_lie_pixel_after_pixel_and_hold_the_crops(filter):
    pytest.importorskip("cv2")
    pictures = Pictures(streamed(VARIED), Augment(size=16, mirror=True, filter=filter), threads=3)
    chosen = np.arange(20)
    images, _ = pictures.train(chosen, seed=1, epoch=0)
    crops = Augment(size=16, mirror=True, filter=filter).crops(chosen, seed=1, epoch=0)
    for place in range(20):
        assert np.array_equal(images[place], crops.cut(place, decode(VARIED[place])).numpy())
    assert torch.from_numpy(images).is_contiguous(memory_format=torch.channels_last)


# Splits


def streamed(images: list[bytes], **options) -> Streamed:
    labels = np.arange(len(images)) % 3
    return Streamed(
        images.__getitem__,
        lambda index: f"image {index}",
        labels,
        ("a", "b", "c"),
        mean=(100.2, 110.0, 120.0),
        std=(50.0, 50.0, 50.0),
        **options,
    )


SAME = [jpeg(number, 20, 28) for number in range(150)]
VARIED = [jpeg(number, 30 + number % 5, 40 - number % 7) for number in range(50)]


def test_small_images_of_one_size_are_held():
    held = in_memory(streamed(SAME), GIB, 1)
    assert isinstance(held, Held) and held.shape == (3, 20, 28) and held.notes == ()
    assert np.array_equal(held.pixels(np.array([149, 3]))[1], decode(SAME[3]).numpy())


@pytest.mark.parametrize(
    ("images", "most_bytes"), [(SAME, 3 * 20 * 28 * 150 - 1), (VARIED, GIB), ([*SAME, VARIED[0]], GIB), (SAME, 0)]
)
def test_others_are_streamed(images, most_bytes):
    data = streamed(images)
    assert in_memory(data, most_bytes, 1) is data and data.shape == (3, 0, 0)


def test_images_of_any_size_are_held_in_the_size_asked_for():
    held = in_memory(streamed(VARIED, side=24), GIB, 1)
    assert isinstance(held, Held) and held.shape == (3, 24, 24)
    assert np.array_equal(held.images[7], centred(decode(VARIED[7]), 24, 24).numpy())
    assert in_memory(streamed(VARIED, side=24), 0, 1).shape == (3, 24, 24)


@pytest.mark.parametrize("threads", [0, 1, 3])
@pytest.mark.parametrize("augment", [Augment(pad=2, crop=20, mirror=True), Augment(size=16, mirror=True)])
def test_held_and_streamed_images_look_the_same_by_any_number_of_threads(augment, threads):
    data = streamed(VARIED, side=24)
    chosen = np.array([49, 0, 7, 7, 31])
    looks = [Pictures(split, augment, count) for split, count in ((in_memory(data, GIB, 1), 1), (data, threads))]
    for way in (lambda look: look.train(chosen, seed=3, epoch=1), lambda look: look.val(chosen)):
        (held, labels), (decoded, other_labels) = (way(look) for look in looks)
        assert held.dtype == np.uint8 and held.shape[0] == 5
        assert np.array_equal(held, decoded) and np.array_equal(labels, other_labels)


@pytest.mark.parametrize("threads", [0, 1, 2])
def test_batches_of_streamed_images_are_the_same_for_any_replicas_threads_and_resume(threads):
    data, augment = streamed(VARIED), Augment(size=12, mirror=True)
    cut = Cut(Span(50, 8), shards=4, seed=5)

    def steps(cut: Cut, first: int = 0, count: int = threads) -> list[list[tuple]]:
        made = Batches(data, augment, cut, thread=count > 0, decoders=count).steps(first, 9)
        return [[(b.images.tolist(), b.labels.tolist(), b.indices.tolist(), b.shards) for b in step] for step in made]

    plain = steps(cut, count=0)
    assert steps(cut) == plain and steps(cut, 4) == plain[4:]
    many = [steps(replace(cut, replica=replica, num_replicas=3)) for replica in range(3)]
    assert [[batch for part in parts for batch in part] for parts in zip(*many, strict=True)] == plain


@pytest.mark.parametrize("threads", [0, 1, 2])
def test_validation_chunks_of_streamed_images(threads):
    data, augment = streamed(VARIED), Augment(size=12)
    plain = [(chunk, batch.images) for chunk, batch in eval_chunks(data, augment, 16)]
    chunks = [
        (chunk, batch.images)
        for replica in range(3)
        for chunk, batch in eval_chunks(data, augment, 16, replica=replica, num_replicas=3, threads=threads)
    ]
    assert [chunk for chunk, _ in chunks] == [0, 1, 2, 3]
    assert all(torch.equal(images, other) for (_, images), (_, other) in zip(chunks, plain, strict=True))
    for _ in eval_chunks(data, augment, 16, threads=threads):
        break  # left early: nothing hangs


def test_images_of_several_sizes_need_to_be_told_a_size():
    assert "need data.augment.size" in (Augment(mirror=True).fault(3, 0, 0) or "")
    assert Augment(size=12).fault(3, 0, 0) is None


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"size": 8, "crop": 8}, "size"),
        ({"size": 8, "pad": 1}, "size"),
        ({"resize": 8}, "resize"),
        ({"size": 8, "resize": 7}, "resize"),
        ({"size": 8, "scale": (0.0, 1.0)}, "scale"),
        ({"size": 8, "scale": (0.5, 0.4)}, "scale"),
        ({"size": 8, "ratio": (2.0, 1.0)}, "ratio"),
    ],
)
def test_augmentations_that_cannot_be(options, key):
    assert [at for at, _ in Augment(**options).faults()] == [key]


def test_the_usual_validation_size():
    assert (Augment(size=224).shorter, Augment(size=224, resize=232).shorter) == (256, 232)


# Bad images among good ones


@bad_images
@pytest.mark.parametrize("case", BAD)
def test_a_bad_image_stops_a_training_or_keeps_its_place_without_a_label(case, capsys):
    data, why = BAD[case]
    images = [*VARIED[:3], data, *VARIED[4:9]]
    chosen, augment = np.array([2, 3, 8]), Augment(size=12)
    with pytest.raises(SourceError) as caught:
        Pictures(streamed(images), augment, 2).train(chosen, seed=0, epoch=0)
    assert str(caught.value).startswith(f"image 3 {why}") and "data.on_bad=skip" in str(caught.value)
    skipping = Pictures(streamed(images, on_bad="skip"), augment, 2)
    for _ in range(2):
        looks, labels = skipping.train(chosen, seed=0, epoch=0)
        good, _ = Pictures(streamed(VARIED), augment).train(chosen, seed=0, epoch=0)
        assert labels.tolist() == [2, NO_IMAGE, 2]
        assert np.array_equal(looks[[0, 2]], good[[0, 2]])  # the others are as if nothing were
        assert (looks[1] == np.array([100, 110, 120], np.uint8)[:, None, None]).all()
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 1 and told[0].startswith(f"WARNING: image 3 {why}")  # once
    assert told[0].endswith("; skipped (1 so far)")


def test_bad_images_are_found_while_all_are_decoded():
    images = [b"", *SAME, SAME[0][:50], b"x"]
    with pytest.raises(SourceError) as caught:
        in_memory(streamed(images), GIB, 1)
    assert str(caught.value) == (
        "image 0 is empty (0 bytes), and so are 2 more; mend or remove it, or train without such images: "
        "data.on_bad=skip"
    )
    held = in_memory(streamed(images, on_bad="skip"), GIB, 1)
    assert isinstance(held, Held)
    assert np.flatnonzero(held.labels == NO_IMAGE).tolist() == [0, 151, 152]
    assert (held.images[151] == np.array([100, 110, 120], np.uint8)[:, None, None]).all()
    assert held.notes == ("3 of 153 images skipped; the first: image 0 is empty (0 bytes)",)
    assert np.array_equal(held.images[1], decode(SAME[0]).numpy())


def test_the_order_of_samples_does_not_know_of_skipped_ones():
    images = list(VARIED)
    images[11] = b""
    cut = Cut(Span(50, 8), shards=2, seed=0)

    def indices(data: Streamed) -> list[list[int]]:
        steps = Batches(data, Augment(size=8), cut, thread=False).steps(0, 14)
        return [[int(index) for batch in step for index in batch.indices] for step in steps]

    assert indices(streamed(images, on_bad="skip")) == indices(streamed(VARIED))


@pytest.mark.parametrize("size", [None, 16])
def test_what_is_skipped_is_nothing_to_the_model_whatever_is_painted(size):
    augment = Augment(size=size, affine=Affine(rotate=30), erase=Erase(probability=1, paint="noise"))
    images, tone = [jpeg(0, 16), b"", jpeg(1, 16)], (10.4, 20.0, 30.0)
    where = ("image {}".format, np.arange(3), ("a", "b", "c"))
    anew = Streamed(images.__getitem__, *where, mean=tone, std=tone, side=16, on_bad="skip")
    held = in_memory(anew, 1 << 20, 1)
    assert isinstance(held, Held)
    made = [Pictures(split, augment).train(np.arange(3), seed=0, epoch=0) for split in (anew, held)]
    for pixels, labels in made:
        assert labels.tolist() == [0, NO_IMAGE, 2] and np.array_equal(pixels, made[0][0])
        assert (pixels[1] == np.array([10, 20, 30])[:, None, None]).all() and (pixels[0] != pixels[2]).any()
