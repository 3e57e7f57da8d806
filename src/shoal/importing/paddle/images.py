"""Images: the section DataLoader, with its lists, transforms, samplers and batches."""

from __future__ import annotations

from shoal.importing.draft import Draft
from shoal.importing.paddle import augmentations
from shoal.importing.settings import Settings, number

IMAGES = ("ImageNetDataset", "MultiScaleDataset", "CommonDataset")
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
PLAIN = ("DistributedBatchSampler", "BatchSampler", "")
CROPS = ("RandCropImage", "RandCropImageV2", "RandomResizedCrop", "RandomResizedCropAndInterpolation")
FLIPS = ("RandFlipImage", "RandomHorizontalFlip")
BLENDS = {"MixupOperator": "mixup", "CutmixOperator": "cutmix"}


def read(job: Settings, draft: Draft) -> int | None:
    """Sets `data` and what the batch operators make of the task; returns images per card and step."""
    for key in job.keys("DataLoader"):
        if key not in ("Train", "Eval"):
            job.lack(f"DataLoader.{key}", "a training on one set of labelled images is what there is")
    train, held = "DataLoader.Train", "DataLoader.Eval"
    if not job.has(train):
        job.wrong(train, "no training images in it")
        return None
    data = f"{train}.dataset" if job.has(f"{train}.dataset") else train  # older files have no such group
    kind = job.text(f"{data}.name", "ImageNetDataset")
    if kind not in IMAGES:
        job.lack(f"{data}.name", f"{kind} is no set of images with one label each; {IMAGES[0]} is what can be read")
    root = job.text(f"{data}.image_root") or job.text(f"{data}.data_dir") or "./dataset"
    draft.set("data", {"name": "folder", "path": root.rstrip("/")})
    draft.say("data", f"Class folders below {root.rstrip('/')}/train and …/val; a flat val/ with its list is mended "
              "by `shoal data pack` (docs/data.md).")  # fmt: skip
    for group, name in ((data, "cls_label_path"), (data, "file_list")):
        job.whole(f"{group}.{name}")
    for key in ("delimiter", "relabel", "image_shape", "shuffle_seed"):
        job.whole(f"{data}.{key}")
    draft.set("data.augment", {})
    _transforms(job, draft, f"{data}.transform_ops" if job.has(f"{data}.transform_ops") else f"{train}.transforms")
    _blends(job, draft, f"{data}.batch_transform_ops")
    batch = _sampler(job, draft, train)
    threads = job.number(f"{train}.loader.num_workers", None) or job.number(f"{train}.num_workers", None)
    if threads:
        draft.set("data.threads", int(threads))
    for key in ("loader", "batch_transform_ops"):
        job.whole(f"{train}.{key}")
    _validation(job, draft, held)
    return batch


def _sampler(job: Settings, draft: Draft, train: str) -> int | None:
    at = f"{train}.sampler"
    kind = job.text(f"{at}.name")
    if job.flag(f"{at}.drop_last"):
        draft.set("drop_last", True)
    if not job.flag(f"{at}.shuffle", True):
        job.leave(f"{at}.shuffle", "training images always come in the order of (seed, epoch)")
    if kind == "MultiScaleSampler":
        job.leave(f"{at}.scales", "images of one size throughout, with the batch of the first")
        for key in ("divided_factor", "is_training"):
            job.whole(f"{at}.{key}")
        return job.count(f"{at}.first_bs")
    if kind not in PLAIN:
        job.lack(f"{at}.name", f"{kind} draws images by classes or identities; each image once an epoch is what is had")
        job.whole(at)
    return job.count(f"{at}.batch_size") or job.count(f"{train}.batch_size")


def _transforms(job: Settings, draft: Draft, at: str) -> None:
    """The operators of one training image."""
    for name, options in job.items(at):
        if name in CROPS:
            size = job.whole(f"{options}.size")
            side = number(size[0] if isinstance(size, list) and size else size)
            if not side or (isinstance(size, list) and len({*map(number, size)}) > 1):
                job.lack(f"{options}.size", f"{size!r} is no square; augment.size is one")
                continue
            draft.set("data.augment.size", int(side))
            for key in ("scale", "ratio"):
                if job.has(f"{options}.{key}"):
                    draft.set(f"data.augment.{key}", job.numbers(f"{options}.{key}"))
            for key in ("interpolation", "backend", "use_log_aspect"):
                job.whole(f"{options}.{key}")
        elif name in FLIPS:
            if job.number(f"{options}.flip_code", 1) == 1 and job.number(f"{options}.prob", 0.5) == 0.5:
                draft.set("data.augment.mirror", True)
            else:
                job.findings.leave(
                    job.place(options), name, "only mirroring from left to right, of every second image, is had"
                )
        elif name == "NormalizeImage":
            _normalise(job, draft, options)
        elif name in ("DecodeImage", "ToCHWImage"):
            job.whole(options)
            if job.whole(f"{options}.to_rgb") is False:
                job.leave(f"{options}.to_rgb", "images are red, green, blue, always")
        elif name in ("ResizeImage", "CropImage", "CenterCrop") and draft.get("data.augment.size") is None:
            _resize(job, draft, name, options)
        else:
            augmentations.read(job, draft, name, options)
    if draft.get("data.augment.size") is None:
        shape = job.numbers("Global.image_shape") or [224]
        draft.set("data.augment.size", int(shape[-1]))
        job.findings.leave(job.place(at), at, "no random crop there; Shoal crops at random all the same")


def _resize(job: Settings, draft: Draft, name: str, options: str) -> None:
    """What a training that does not crop at random does with images of several sizes."""
    size = job.whole(f"{options}.size") or job.whole(f"{options}.resize_short")
    side = number(size[0] if isinstance(size, list) and size else size)
    job.whole(options)
    if side:
        job.findings.leave(job.place(options), f"{name} {size}", "images are cut at random to the validation's size")


def _normalise(job: Settings, draft: Draft, options: str) -> None:
    """Paddle computes (pixel * scale - mean) / std; a recipe states mean and std for pixels from 0 to 255."""
    scale = job.number(f"{options}.scale", 1 / 255) or 1 / 255
    for key, usual in (("mean", MEAN), ("std", STD)):
        exact = [value / scale for value in (job.numbers(f"{options}.{key}") or usual)[:3]]
        if len(exact) < 3 or not all(0 <= value <= 255.5 for value in exact):
            job.wrong(f"{options}.{key}", f"expected three numbers from 0 to {255 * scale:g}")
        elif any(abs(value - 255 * ours) > 0.05 for value, ours in zip(exact, usual, strict=True)):
            draft.set(f"data.{key}", [round(min(value, 255.0), 4) for value in exact])
    for key in ("order", "output_fp16", "channel_num"):
        job.whole(f"{options}.{key}")


def _blends(job: Settings, draft: Draft, at: str) -> None:
    """Mixup and cutmix, of whole batches."""
    for name, options in job.items(at):
        if name == "OpSampler":
            chances = 0.0
            job.skip(f"{options}.class_num")
            for inner in job.keys(options):
                if inner == "class_num":
                    continue
                chances += job.number(f"{options}.{inner}.prob", 1.0) or 0.0
                _blend(job, draft, inner, f"{options}.{inner}")
            if chances < 0.999:
                job.findings.leave(
                    job.place(options), f"OpSampler with chances of {chances:g} in all", "every batch is blended"
                )
        else:
            _blend(job, draft, name, options)


def _blend(job: Settings, draft: Draft, name: str, options: str) -> None:
    if draft.get("task.teacher") is not None:
        job.findings.leave(job.place(options), name, "images that a teacher looks at, too, are not blended")
        job.whole(options)
    elif name in BLENDS:
        draft.set(f"task.{BLENDS[name]}", job.number(f"{options}.alpha", 1.0))
        job.skip(f"{options}.prob", f"{options}.class_num")
    elif name == "MixupCutmixHybrid":
        for blend in ("mixup", "cutmix"):
            draft.set(f"task.{blend}", job.number(f"{options}.{blend}_alpha", 1.0))
        job.whole(options)
    else:
        job.findings.leave(job.place(options), name, "mixup and cutmix are the blends that are had")
        job.whole(options)


def _validation(job: Settings, draft: Draft, held: str) -> None:
    data = f"{held}.dataset" if job.has(f"{held}.dataset") else held
    ops = f"{data}.transform_ops" if job.has(f"{data}.transform_ops") else f"{held}.transforms"
    for name, options in job.items(ops):
        if name == "ResizeImage" and job.has(f"{options}.resize_short"):
            resize = job.count(f"{options}.resize_short")
            if resize and resize >= (draft.get("data.augment.size") or 0):
                draft.set("data.augment.resize", resize)
        elif name == "CropImage":
            size = job.whole(f"{options}.size")
            side = number(size[0] if isinstance(size, list) and size else size)
            if side and side != draft.get("data.augment.size"):
                job.leave(f"{options}.size", "images are validated at the size they are trained at")
        elif name not in ("DecodeImage", "NormalizeImage", "ToCHWImage"):
            told = "validation images are resized by their shorter side, and their middle is cut out"
            job.findings.leave(job.place(options), f"{name}, in validation", told)
    if batch := job.count(f"{held}.sampler.batch_size") or job.count(f"{held}.batch_size"):
        draft.set("data.eval_batch", batch)
    job.whole(held)
