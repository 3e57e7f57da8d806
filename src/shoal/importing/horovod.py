"""Horovod: pytorch_imagenet_resnet50.py of its examples."""

from __future__ import annotations

from shoal.importing.draft import Draft
from shoal.importing.findings import Findings
from shoal.importing.flags import Flags
from shoal.importing.pytorch import AUGMENT
from shoal.importing.words import Word
from shoal.importing.wrappers import Spread


def flags() -> Flags:
    known = Flags("Horovod's example")
    known.value("--train-dir", "--val-dir", "--log-dir", "--checkpoint-format", "--batches-per-allreduce")
    known.value("--gradient-predivide-factor", "--batch-size", "--val-batch-size", "--epochs", "--base-lr")
    known.value("--warmup-epochs", "--momentum", "--wd", "--seed")
    return known.switch("--fp16-allreduce", "--use-adasum", "--no-cuda")


def read(script: str, words: list[Word], spread: Spread, findings: Findings) -> Draft:
    """The recipe of `pytorch_imagenet_resnet50.py --train-dir … --val-dir …`."""
    job = flags().read(words, findings)
    draft = Draft("imagenet-resnet50", script)
    count, pieces = spread.total or 1, job.count("batches_per_allreduce", 1) or 1
    size, rate = job.count("batch_size", 32) or 32, job.number("base_lr", 0.0125) or 0.0
    train = job.text("train_dir", "~/imagenet/train").rstrip("/")
    draft.set(
        "data", {"name": "folder", "path": train, "val": job.text("val_dir", "~/imagenet/validation").rstrip("/")}
    )
    draft.set("data.augment", dict(AUGMENT))
    draft.set("data.eval_batch", job.count("val_batch_size", 32))
    draft.set("model", "resnet50")
    draft.set(
        "batch", size * pieces * count, f"batch {size} per process x {pieces} x {count} = batch {size * pieces * count}"
    )
    draft.set("shards", count * pieces)
    scaled = float(f"{rate * count * pieces:.12g}")
    draft.set("optim", {"name": "sgd", "lr": scaled, "momentum": job.number("momentum", 0.9)})
    draft.say("optim", f"The script multiplied --base-lr {rate:g} with {count * pieces} (processes x batches at once).")
    draft.set("optim.weight_decay", job.number("wd", 5e-5))
    warmup = job.number("warmup_epochs", 5) or 0
    draft.set("schedule", {"name": "multistep", "at": ["30ep", "60ep", "80ep"], "gamma": 0.1})
    if warmup:
        draft.set("schedule.warmup", f"{warmup:g}ep")
        draft.set("schedule.warmup_from", float(f"{1 / count:.6g}"))
    draft.set("length", f"{job.count('epochs', 90)}ep")
    draft.set("seed", int(job.number("seed", 42) or 0))
    if job.flag("fp16_allreduce"):
        draft.set("strategy", {"name": "ddp", "compress": "fp16"})
    job.leave("use_adasum", "gradients are added; strategy=local_sgd is what saves on exchanges")
    job.leave("gradient_predivide_factor", "gradients are sums over the batch, exactly")
    job.leave("log_dir", "all of a run lies in its folder")
    job.leave("checkpoint_format", "all of a run lies in its folder")
    job.whole("no_cuda")
    draft.launch = spread.words()
    return draft
