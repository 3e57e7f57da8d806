"""Net: the section Arch, one net or a student with its teacher."""

from __future__ import annotations

from shoal.importing.draft import Draft
from shoal.importing.paddle import distillation, models
from shoal.importing.settings import Settings
from shoal.models import check_name

SEVERAL = ("DistillationModel", "RecModel", "AttentionModel")
PICKLES = "Paddle's files hold pickles, which are never opened (docs/from-paddleclas.md)"
UNTOLD = (
    "class_num",
    "num_classes",
    "model_filter_name",
    "return_patterns",
    "return_stages",
    "infer_add_softmax",
    "use_sync_bn",
)


def read(job: Settings, draft: Draft) -> None:
    """Sets `model`, and the teacher where there is one."""
    name = job.text("Arch.name")
    if not name:
        job.wrong("Arch", "no name of a model in it")
    elif name == "DistillationModel" and (student := distillation.pair(job, draft)):
        _one(job, draft, student)
    elif name in SEVERAL:
        if name != "DistillationModel":
            job.lack("Arch.name", f"{name}: several nets that are trained together; one classifier is what can be")
        job.skip("Arch")
        draft.set("model", "resnet50")
    else:
        _one(job, draft, "Arch")


def _one(job: Settings, draft: Draft, at: str) -> None:
    """The net whose name and arguments stand below `at`."""
    name = job.text(f"{at}.name")
    ours, options = models.called(name)
    if fault := check_name(ours):
        job.lack(f"{at}.name", f"{name}: {fault}")
    draft.set("model", {"name": ours, **({"options": options} if options else {})}, f"Paddle's {name}.")
    if job.text(f"{at}.pretrained").endswith(".pdparams"):
        job.leave(f"{at}.pretrained", PICKLES)
    elif job.flag(f"{at}.pretrained"):
        draft.set("model.pretrained", True, "pretrained: timm's weights, not Paddle's.")
    for ours_key, theirs in (
        ("drop_path", ("drop_path_rate", "stochastic_depth", "droppath")),
        ("drop", ("drop_rate", "class_dropout", "dropout_prob", "dropout")),
    ):
        for key in theirs:
            rate = job.number(f"{at}.{key}") or 0.0
            if not 0 <= rate < 1:
                job.wrong(f"{at}.{key}", f"expected a number from 0 to below 1, got {rate:g}")
            elif rate:
                draft.set(f"model.{ours_key}", rate)
    if job.text(f"{at}.data_format", "NCHW") == "NHWC":
        draft.set("model.channels_last", True)
    job.leave(f"{at}.finetune_weight", PICKLES)
    job.leave(f"{at}.use_ssld", "those weights are Paddle's own")
    if job.flag(f"{at}.use_sync_bn"):
        draft.set("norm", "sync")
    job.skip(*(f"{at}.{key}" for key in UNTOLD))
    for key in job.keys(at):
        if f"{at}.{key}" in job.unread():
            job.leave(f"{at}.{key}", f"an argument of Paddle's net; timm's {ours} has its own (model.options)")
            job.skip(f"{at}.{key}")
