"""What MXNet's image iterator did to training images (src/io/image_aug_default.cc), as data.augment."""

from __future__ import annotations

from typing import Any

from shoal.importing.draft import Draft
from shoal.importing.settings import Settings

IMAGENET = {"min_random_area": 0.08, "max_random_aspect_ratio": 4 / 3, "min_random_aspect_ratio": 3 / 4,
            "brightness": 0.4, "contrast": 0.4, "saturation": 0.4, "pca_noise": 0.1}  # fmt: skip
"""What --use-imagenet-data-augmentation stands for."""
FLAGS = ("--random-crop", "--random-mirror", "--random-resized-crop", "--pad-size", "--fill-value", "--max-random-h",
         "--max-random-s", "--max-random-l", "--min-random-aspect-ratio", "--max-random-aspect-ratio",
         "--max-random-rotate-angle", "--max-random-shear-ratio", "--max-random-scale", "--min-random-scale",
         "--max-random-area", "--min-random-area", "--max-crop-size", "--min-crop-size", "--brightness", "--contrast",
         "--saturation", "--pca-noise")  # fmt: skip


def read(job: Settings, draft: Draft, side: int, *, large: bool) -> None:
    """large: images of several sizes, as packed."""
    imagenet = job.flag("use_imagenet_data_augmentation")
    resized = job.flag("random_resized_crop") or imagenet
    usual = IMAGENET if imagenet else {}
    augment: dict[str, Any] = {}
    if resized or large:
        augment["size"] = side
        if not resized:
            cut = f"The script cut {side} pixels out of the images as they were packed"
            draft.say("data", f"{cut}; augment.size cuts a random part of them and resizes it.")
    else:
        augment |= {"pad": int(job.number("pad_size", 0) or 0), "crop": side}
        if not job.flag("random_crop"):
            draft.say(
                "data", "The script cut the middle out of every image where --random-crop was 0; Shoal crops at random."
            )
    for key in ("pad_size", "random_crop"):
        job.whole(key)
    augment |= _shape(job, usual, parts="size" in augment, areas=resized)
    if "size" not in augment or "affine" in augment:
        augment["fill"] = int(job.number("fill_value", 127) or 0)
    job.whole("fill_value")
    if job.flag("random_mirror") or resized:
        augment["mirror"] = True
    if colour := _colour(job, usual):
        augment["colour"] = colour
    draft.set("data.augment", augment)


def _shape(job: Settings, usual: dict[str, float], *, parts: bool, areas: bool) -> dict[str, Any]:
    """parts: random ones are resized; areas: their areas were given, too."""
    found, affine = {}, {}
    for key, flag in (("rotate", "max_random_rotate_angle"), ("shear", "max_random_shear_ratio")):
        if value := job.number(flag, 0):
            affine[key] = value
    most = job.number("max_random_aspect_ratio", usual.get("max_random_aspect_ratio", 0.0)) or 0.0
    least = job.number("min_random_aspect_ratio", usual.get("min_random_aspect_ratio"))
    ratio = [round(1 - most, 4), round(1 + most, 4)] if least is None else [round(least, 4), round(most, 4)]
    scale = [job.number("min_random_scale", 1.0), job.number("max_random_scale", 1.0)]
    area = [job.number("min_random_area", usual.get("min_random_area", 1.0)), job.number("max_random_area", 1.0)]
    if areas:
        found["scale"] = area
    if areas or (parts and ratio != [1, 1]):
        found["ratio"] = ratio
    elif ratio != [1, 1]:
        affine["ratio"] = ratio
    if scale != [1, 1] and not parts:
        affine["scale"] = scale
    elif parts:
        for key in ("min_random_scale", "max_random_scale"):
            job.leave(key, "augment.size takes random parts, whose areas are augment.scale")
    if not areas:
        for key in ("min_random_area", "max_random_area"):
            job.leave(key, "MXNet used it with --random-resized-crop alone")
    for key in ("max_crop_size", "min_crop_size"):
        job.leave(key, "a random part is resized by augment.size, and augment.scale says how large it is")
    return {**found, **({"affine": affine} if affine else {})}


def _colour(job: Settings, usual: dict[str, float]) -> dict[str, Any]:
    keys = {"brightness": "brightness", "contrast": "contrast", "saturation": "saturation", "pca": "pca_noise"}
    colour: dict[str, Any] = {
        key: value for key, flag in keys.items() if (value := job.number(flag, usual.get(flag, 0.0)))
    }
    hls = [job.number(f"max_random_{letter}", 0.0) for letter in "hls"]
    return {**colour, **({"hls": hls} if any(hls) else {})}
