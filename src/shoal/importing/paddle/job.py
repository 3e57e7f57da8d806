"""Job: a whole PaddleClas YAML as a recipe."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from shoal.base.errors import UsageError
from shoal.importing.draft import Draft
from shoal.importing.findings import Findings
from shoal.importing.paddle import distillation, images, net, overrides, steps
from shoal.importing.settings import Settings
from shoal.recipe import yaml12

SECTIONS = ("Global", "Arch", "Loss", "Optimizer", "DataLoader", "Metric", "AMP", "EMA", "Infer", "Slim")
MACHINERY = (
    "use_visualdl",
    "to_static",
    "save_inference_dir",
    "image_shape",
    "image_channel",
    "device",
    "use_dali",
    "eval_mode",
    "use_multilabel",
    "export_with_pir",
    "iter_per_epoch",
    "print_batch_step_time",
    "log_ranks",
    "enable_ce_loss",
    "profiler_options",
    "uniform_output_enabled",
    "calc_epoch_interval",
    "export_for_fd",
    "d2s_train_image_shape",
    "class_num",
    "task",
    "eval_unit",
    "flags_prim_all",
    "pdx_model_name",
    "hpi_config_path",
    "max_num_latest_checkpoint",
    "auto_cast",
    "inference",
    "retrieval_feature_from",
    "flags",
    "infer_imgs",
)
"""Keys of Global that say how PaddleClas itself works, and nothing of what is trained."""


def is_one(values: Any) -> bool:
    """Whether a YAML's values look like PaddleClas's."""
    return isinstance(values, dict) and sum(section in values for section in SECTIONS) >= 2


def read(path: Path, given: list[str], cards: int | None, findings: Findings) -> Draft:
    """The recipe of the YAML at `path`, with `given` as behind -o. `cards`: how many trained it, if known."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or 'not UTF-8 text'})") from None
    read_values, lines = yaml12.read(text, str(path))
    values = _without_none(read_values)
    if not is_one(values):
        raise UsageError(f"{path}:1: no YAML of PaddleClas: none of its sections {', '.join(SECTIONS[:5])} …")
    said = {overrides.apply(values, override) for override in given}

    def where(at: tuple[str, ...]) -> str:
        near = next((at[:depth] for depth in range(len(at), 0, -1) if at[:depth] in lines or at[:depth] in said), ())
        return "command line" if near in said else f"{path}:{lines.get(near, 1)}"

    job = Settings(values, where, findings)
    draft = Draft(f"{path.stem}.shoal", path.name)
    epochs = job.count("Global.epochs", 120) or 120
    draft.set("length", f"{epochs}ep")
    net.read(job, draft)
    _loss(job, draft)
    steps.read(job, draft, epochs)
    batch = images.read(job, draft)
    _batch(job, draft, batch or 64, cards)
    _global(job, draft)
    _half_precision(job, draft)
    if job.has("EMA"):
        decay = job.number("EMA.decay", 0.9999) or 0.0
        if 0 < decay < 1:
            half = max(1, round(math.log(0.5) / math.log(decay)))
            draft.set("ema.half_life", f"{half}st", f"A decay of {decay:g} a step is a half-life of {half} steps.")
        else:
            job.wrong("EMA.decay", f"expected a number between 0 and 1, got {decay:g}")
    _others(job)
    for unknown in job.unread():
        kind = "unknown section" if "." not in unknown else "unknown key; nothing was made of it"
        findings.strange(job.place(unknown), unknown, kind)
    return draft


def _without_none(value: Any) -> Any:
    """PaddleClas reads the word None as nothing, too."""
    if isinstance(value, dict):
        return {key: _without_none(held) for key, held in value.items()}
    if isinstance(value, list):
        return [_without_none(held) for held in value]
    return None if value == "None" else value


def _loss(job: Settings, draft: Draft) -> None:
    job.whole("Loss.Eval")
    losses = list(job.items("Loss.Train"))
    if not losses:
        job.wrong("Loss.Train", "no loss in it; expected CELoss")
    taught = draft.get("task.teacher") is not None
    if not taught:
        _cross_entropies(job, draft, losses)
    elif fault := distillation.loss(job, draft, losses):
        job.findings.lack(job.place("Loss.Train"), "Loss.Train", fault)


def _cross_entropies(job: Settings, draft: Draft, losses: list[tuple[str, str]]) -> None:
    for name, options in losses:
        if name in ("CELoss", "MixCELoss", "GoogLeNetLoss"):
            if smoothing := job.number(f"{options}.epsilon"):
                draft.set("task.smoothing", smoothing)
            weight = job.number(f"{options}.weight", 1.0)
            if weight != 1 and len(losses) == 1:
                job.leave(f"{options}.weight", "a loss alone has weight 1; optim.lr says the same")
            if name == "GoogLeNetLoss":
                job.findings.leave(job.place(options), name, "googlenet is trained without its auxiliary classifiers")
            job.skip(f"{options}.reduction", f"{options}.class_num")
        else:
            told = distillation.ALONE if name.startswith("Distillation") else "cross-entropy is what there is"
            job.skip(options)
            job.findings.lack(job.place(options), f"Loss.Train: {name}", told)


def _batch(job: Settings, draft: Draft, per_card: int, cards: int | None) -> None:
    pieces = job.count("Global.update_freq", 1) or 1
    if cards is None:
        told = (
            f"Paddle's batch of {per_card} was per card, and lr was not scaled: with another number of workers another"
        )
        draft.set("batch_per_worker", per_card, f"{told} model is trained. --cards N makes it one batch.")
        if pieces > 1:
            draft.set("accumulate", pieces)
    else:
        told = f"batch {per_card} per card x {cards} = batch {per_card * cards * pieces}"
        draft.set(
            "batch", per_card * cards * pieces, told.replace(" =", f" x {pieces} steps =") if pieces > 1 else told
        )
        draft.set("shards", cards * pieces)


def _global(job: Settings, draft: Draft) -> None:
    at = "Global"
    if not job.flag(f"{at}.eval_during_train", True):
        job.leave(f"{at}.eval_during_train", "every epoch is validated; eval_every says how often")
    every = job.count(f"{at}.eval_interval", 1)
    draft.set("eval_every", f"{every}ep")
    save = job.number(f"{at}.save_interval", 1) or 1
    if save >= 1:
        draft.set("save_every", f"{int(save)}ep")
    draft.set("log_every", f"{job.count(f'{at}.print_batch_step', 10)}st")
    if (seed := job.number(f"{at}.seed")) is not None:
        draft.set("seed", int(seed))
    for key in ("pretrained_model", "checkpoints"):
        job.leave(f"{at}.{key}", "Paddle's files hold pickles, which are never opened (docs/from-paddleclas.md)")
    if output := job.text(f"{at}.output_dir").rstrip("/"):
        draft.launch += ["--run", output]
    job.leave(f"{at}.train_mode", "images have one size, and augmentation one strength, throughout")
    job.leave(f"{at}.distributed", "the launch command says it")
    for key in MACHINERY:
        job.whole(f"{at}.{key}")


def _half_precision(job: Settings, draft: Draft) -> None:
    if job.has("AMP_BF16"):
        draft.set("precision", "bf16")
        job.skip("AMP_BF16")
    if not job.has("AMP"):
        return
    job.skip("AMP.use_fp16_test", "AMP.use_promote", "AMP.use_bf16_test")
    pure = job.flag("AMP.use_pure_fp16")
    level = job.text("AMP.level", job.text("AMP.amp_level", "O2" if pure else "O1")).upper()
    scale, moving = job.number("AMP.scale_loss", 1.0) or 1.0, job.flag("AMP.use_dynamic_loss_scaling")
    kind, growth = job.text("AMP.dtype", "float16"), job.count("AMP.incr_every_n_steps")
    if not job.flag("AMP.use_amp", True):
        return
    if level not in ("O1", "O2"):
        job.wrong("AMP.level", f"expected O1 or O2, got {level}")
    elif kind == "bfloat16":
        draft.set("precision", "bf16")
    elif moving:
        draft.set("precision", {"name": level, "loss_scale": "dynamic", "init_scale": scale})
        if growth is not None:
            draft.set("precision.growth_steps", growth)
    else:
        draft.set("precision", {"name": level, "loss_scale": scale})


def _others(job: Settings) -> None:
    job.skip("Metric", "Infer", "profiler_options")
    if job.has("Slim"):
        job.leave("Slim", "models are neither quantised nor pruned in training")
    for key in ("DistributedStrategy", "FlashAttn", "Export"):
        job.leave(key, "how Paddle spreads or computes the work, and no part of what is trained")
