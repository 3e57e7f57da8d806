"""Steps: the section Optimizer, with its learning rate, decay and clipping."""

from __future__ import annotations

from itertools import pairwise

from shoal.importing.draft import Draft
from shoal.importing.settings import Settings


def read(job: Settings, draft: Draft, epochs: int) -> None:
    """Sets `optim` and `schedule`."""
    at = "Optimizer"
    if isinstance(job.values.get(at), list):
        job.lack(at, "several optimizers for parts of one model; a recipe has one")
        return
    name = job.text(f"{at}.name")
    if name in ("Momentum", "SGD"):
        draft.set("optim.name", "sgd")
        draft.set("optim.momentum", job.number(f"{at}.momentum", 0.9 if name == "Momentum" else 0.0))
        if job.flag(f"{at}.use_nesterov"):
            draft.set("optim.nesterov", True)
    elif name in ("Adam", "AdamW", "AdamWDL"):
        draft.set("optim.name", "timm" if name == "Adam" else "adamw")
        job.leave(f"{at}.momentum", f"{name} has none; its betas are what it has")
        beta1, beta2 = job.number(f"{at}.beta1", 0.9), job.number(f"{at}.beta2", 0.999)
        eps = job.number(f"{at}.epsilon", 1e-8)
        if name == "Adam":
            draft.set("optim.opt", "adam")
            draft.set("optim.options", {"betas": [beta1, beta2], "eps": eps})
        else:
            draft.keys["optim"].update(beta1=beta1, beta2=beta2, eps=eps)
    elif name == "RMSProp":
        draft.set("optim", {"name": "timm", "opt": "rmsproptf"}, "rmsproptf: epsilon inside the root, as Paddle has it")
        options = {"alpha": job.number(f"{at}.rho", 0.95), "momentum": job.number(f"{at}.momentum", 0.0)}
        draft.set("optim.options", {**options, "eps": job.number(f"{at}.epsilon", 1e-6)})
    elif not name:
        job.wrong(at, "no section Optimizer with a name in it; a training needs one")
        return
    else:
        job.lack(f"{at}.name", f"no optimizer {name} that is known to be the same (`shoal list optims`)")
        job.whole(at)
        return
    _decay(job, draft, at)
    _rate(job, draft, f"{at}.lr", epochs)
    for key in ("multi_precision", "use_multi_tensor", "lazy_mode"):
        job.whole(f"{at}.{key}")  # how Paddle computes it


def _decay(job: Settings, draft: Draft, at: str) -> None:
    decay = job.number(f"{at}.weight_decay")
    if job.has(f"{at}.regularizer"):
        kind = job.text(f"{at}.regularizer.name", "L2")
        coefficient = job.number(f"{at}.regularizer.coeff", 0.0)
        if decay is not None:
            job.wrong(f"{at}.regularizer", f"contradicts {at}.weight_decay; state one of them")
        elif kind == "L2":
            decay = coefficient
        else:
            job.leave(f"{at}.regularizer", f"no {kind} regularisation; weights do not decay")
    if decay:
        draft.set("optim.weight_decay", decay)
    if job.flag(f"{at}.one_dim_param_no_weight_decay"):
        draft.set("optim.decay_norms", False)
    job.leave(f"{at}.no_weight_decay_name", "decay by name is not had; optim.decay_norms is what there is")
    for key in ("layerwise_decay", "filter_bias_and_bn", "layer_decay"):
        job.leave(f"{at}.{key}", "all layers learn at one rate")
    if job.has(f"{at}.grad_clip"):
        clip = job.text(f"{at}.grad_clip.name", "ClipGradByGlobalNorm")
        norm = job.number(f"{at}.grad_clip.clip_norm")
        if clip == "ClipGradByGlobalNorm" and norm:
            draft.set("optim.clip_norm", norm)
        else:
            job.leave(f"{at}.grad_clip", f"no {clip}; only the norm of the whole gradient can be limited")
    if norm := job.number(f"{at}.clip_norm"):
        draft.set("optim.clip_norm", norm)
    job.leave(f"{at}.clip_grad", "PaddleClas's optimizers take no such option; optim.clip_norm limits gradients")


def _rate(job: Settings, draft: Draft, at: str, epochs: int) -> None:
    if not job.keys(at):
        draft.set("optim.lr", job.number(at, 0.001))
        return
    name = job.text(f"{at}.name", "Constant")
    rate = job.number(f"{at}.learning_rate")
    peak = 0.001 if rate is None else rate
    job.skip(f"{at}.by_epoch", f"{at}.verbose", f"{at}.last_epoch", f"{at}.T_max")
    if name in ("Piecewise", "MultiStepDecay"):
        peak = _drops(job, draft, at, name, rate, peak)
    elif name in ("Cosine", "CosineWarmup"):
        draft.set("schedule", {"name": "cosine"})
        if (end := job.number(f"{at}.eta_min", 0.0)) and peak:
            draft.set("schedule.end", _share(end, peak))
    elif name in ("Linear", "Polynomial"):
        if (power := job.number(f"{at}.power", 1.0)) != 1:
            job.lack(f"{at}.power", f"a fall by power {power:g}; linear and cosine are what there is")
        end = job.number(f"{at}.end_lr", 0.0) or 0.0
        draft.set("schedule", {"name": "linear", **({"end": _share(end, peak)} if end and peak else {})})
        job.skip(f"{at}.cycle", f"{at}.steps")
    elif name in ("Step", "StepDecay"):
        every, gamma = job.count(f"{at}.step_size", 30), job.number(f"{at}.gamma", 0.1)
        draft.set("schedule", {"name": "step", "every": f"{every}ep", "gamma": gamma})
    elif name in ("Constant", "ConstLR"):
        draft.set("schedule", {"name": "constant"})
    else:
        job.whole(at)
        job.lack(f"{at}.name", f"no schedule {name} (`shoal list schedules`)")
    draft.set("optim.lr", peak)
    warmup = job.number(f"{at}.warmup_epoch", 0) or 0
    start = job.number(f"{at}.warmup_start_lr", 0.0) or 0.0
    job.skip(f"{at}.epochs", f"{at}.step_each_epoch")
    if warmup >= epochs:
        draft.say(
            "schedule", f"A warm-up of {warmup:g} epochs leaves nothing of {epochs}; PaddleClas cuts it to the length."
        )
        warmup = epochs
    if warmup:
        draft.set("schedule.warmup", f"{warmup:g}ep")
        if start and peak:
            draft.set("schedule.warmup_from", _share(start, peak))


def _drops(job: Settings, draft: Draft, at: str, name: str, rate: float | None, peak: float) -> float:
    """The rate falls at stated epochs; returns its first value."""
    key = "decay_epochs" if name == "Piecewise" else "milestones"
    epochs, numbers = job.numbers(f"{at}.{key}") or [], job.numbers(f"{at}.values") or []
    gamma = job.number(f"{at}.gamma", 0.1) or 0.1
    if not epochs or (numbers and len(numbers) != len(epochs) + 1):
        job.wrong(f"{at}.{key}", "expected a list of epochs, and values one longer than it")
        return peak
    if numbers and numbers[0]:
        factors = [after / before if before else 0 for before, after in pairwise(numbers)]
        gamma = factors[0]
        if any(abs(factor - gamma) > 1e-6 * abs(gamma) for factor in factors) or not 0 < gamma <= 1:
            job.lack(f"{at}.values", f"{numbers} fall by several factors; multistep has one (schedule.gamma)")
        if rate is not None and rate != numbers[0]:
            draft.say("optim", f"Paddle trains with values ({numbers[0]:g}), and never with learning_rate: {rate:g}.")
        peak = numbers[0]
    at_epochs = [f"{epoch:g}ep" for epoch in epochs if epoch > 0]
    draft.set("schedule", {"name": "multistep", "at": at_epochs, "gamma": _share(gamma, 1)})
    return peak


def _share(part: float, whole: float) -> float:
    """A quotient without the last bits, so that 0.01 of 0.1 is written 0.1."""
    return float(f"{part / whole:.10g}")
