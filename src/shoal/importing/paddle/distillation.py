"""Distillation: PaddleClas's DistillationModel with a frozen teacher, as the task `distill`."""

from __future__ import annotations

from typing import Any

from shoal.importing.draft import Draft
from shoal.importing.paddle import models
from shoal.importing.settings import Settings
from shoal.models import check_name

ALONE = "needs a student and one frozen teacher (Arch.models, freeze_params_list)"


def pair(job: Settings, draft: Draft) -> str | None:
    """Sets the teacher, and returns where the student stands. None, with the reason told: there is no such pair."""
    frozen, student = job.whole("Arch.freeze_params_list"), job.text("Arch.infer_model_name", "Student")
    roles = list(job.items("Arch.models"))
    if not isinstance(frozen, list) or sorted(map(bool, frozen)) != [False, True] or len(roles) != 2:
        return _lack(
            job, "one student and one teacher that is frozen are what is had; nets that teach each other are not"
        )
    job.skip("Arch.pretrained_list", "Arch.class_num")
    (_, teacher), (name, learner) = sorted(roles, key=lambda role: not frozen[roles.index(role)])
    if name != student:
        return _lack(job, f"{student} is to be kept, and {name} is what learns")
    theirs = job.text(f"{teacher}.name")
    ours, options = models.called(theirs)
    if fault := check_name(ours):
        job.lack(f"{teacher}.name", f"{theirs}: {fault}")
    known: dict[str, Any] = {"model": ours, **({"options": options} if options else {})}
    draft.set("task", {"name": "distill", "teacher": known}, f"The teacher is Paddle's {theirs}, with timm's weights; "
              "task.teacher.pretrained=FILE takes others.")  # fmt: skip
    job.skip(teacher)
    return learner


def loss(job: Settings, draft: Draft, losses: list[tuple[str, str]]) -> str | None:
    """Sets what the teacher and the labels count; what is not had, where something is not."""
    draft.set("task.label_weight", 0.0)
    teaching = 0
    for name, options in losses:
        weight = job.number(f"{options}.weight", 1.0)
        if name in ("DistillationGTCELoss", "CELoss"):
            draft.set("task.label_weight", weight)
        elif name == "DistillationDMLLoss" and not job.flag(f"{options}.sum_across_class_dim"):
            draft.keys["task"].update(divergence="symmetric", distill_weight=weight)
        elif name == "DistillationCELoss" and not job.flag(f"{options}.use_hard_label"):
            draft.keys["task"].update(divergence="kl", temperature=1, distill_weight=weight)
        elif name == "DistillationKLDivLoss":
            temperature = job.number(f"{options}.temperature", 4.0)
            draft.keys["task"].update(divergence="kl", temperature=temperature, distill_weight=weight)
        else:
            job.skip(options)
            return f"{name}: the divergence of logits, symmetric or KL, is what there is"
        teaching += name.startswith("Distillation") and name != "DistillationGTCELoss"
        job.skip(*(f"{options}.{key}" for key in ("model_name_pairs", "model_names", "key", "act", "name")))
    return None if teaching == 1 else f"{teaching} losses of a teacher; one is what there is"


def _lack(job: Settings, why: str) -> None:
    job.lack("Arch.name", f"DistillationModel: several nets that are trained together; {why}")
