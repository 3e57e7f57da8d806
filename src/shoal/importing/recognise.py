"""Recognise: which old world a job comes from, by what it says; and the recipe that it becomes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePath

from shoal.base.errors import UsageError
from shoal.importing import horovod, mxnet, pytorch, words
from shoal.importing.draft import Draft
from shoal.importing.findings import Findings
from shoal.importing.flags import Flags
from shoal.importing.paddle import job as paddle
from shoal.importing.wrappers import Spread, unwrap

WORLDS = ("paddleclas", "mxnet", "pytorch", "horovod")
_PYTORCH = (
    "main.py",
    "main_",
    "imagenet",
    "imagnet",
    "dataparallel",
    "distributed",
    "multiprocessing",
    "apex",
    "horovod_",
)
"""How the scripts of the tutorials that grew out of the ImageNet example begin."""
WEIGHTS = (".params", ".pdparams", ".safetensors", ".pth", ".pt", ".tar")
_SIGNS = (("paddleclas", ("-c", "--config")), ("horovod", ("--train-dir", "--base-lr", "--batches-per-allreduce")),
          ("mxnet", ("--kv-store", "--network", "--num-layers", "--data-train", "--lr-step-epochs")))  # fmt: skip
"""Options that one world alone has."""


def read(arguments: Sequence[str], world: str | None, cards: int | None, findings: Findings) -> Draft:
    """The draft of what `arguments` name: a YAML, a shell script with one command, or that command's words."""
    path = Path(arguments[0])
    if path.suffix in WEIGHTS:
        raise UsageError(f"{path}: looks like weights; those are read by: shoal import weights {path}")
    is_text = path.suffix in (".yaml", ".yml", ".sh", ".txt", ".bash")
    if path.is_file() and is_text:
        if path.suffix in (".yaml", ".yml"):
            return _yaml(path, list(arguments[1:]), world, cards, findings)
        if len(arguments) > 1:
            raise UsageError(f"{arguments[1]}: a script is imported as it stands; leave out what is behind {path}")
        command = words.script(path)
    elif is_text and len(arguments) == 1:
        raise UsageError(f"{path}: no such file")
    else:
        command = words.given(arguments)
    spread, script = unwrap(command, findings)
    if not script:
        raise UsageError(
            "no script in this command; expected one such as: torchrun --nproc-per-node 4 main.py IMAGENET"
        )
    name, rest = PurePath(script[0].text).name, script[1:]
    found = world or _world(name, [word.text for word in rest])
    if found is None:
        raise UsageError(
            f"{script[0].where}: {script[0].text}: neither its name nor its options are of a script known here; "
            f"--from says which world it is of: {', '.join(WORLDS)}"
        )
    if found == "paddleclas":
        return _paddle(rest, spread, cards, findings)
    reader = {"mxnet": mxnet.read, "pytorch": pytorch.read, "horovod": horovod.read}[found]
    return reader(name, rest, spread, findings)


def _world(script: str, options: Sequence[str]) -> str | None:
    said = {option.partition("=")[0] for option in options}
    for world, signs in _SIGNS:
        if said & set(signs):
            return world
    if script in (*mxnet.SCRIPTS, "train_mnist.py", "fine-tune.py"):
        return "mxnet"
    if script == "pytorch_imagenet_resnet50.py":
        return "horovod"
    return "pytorch" if script.endswith(".py") and script.startswith(_PYTORCH) else None


def _yaml(path: Path, rest: list[str], world: str | None, cards: int | None, findings: Findings) -> Draft:
    if world not in (None, "paddleclas"):
        raise UsageError(f"{path}: a YAML is PaddleClas's, not {world}'s")
    told = _train_py().read([words.Word(text, words.COMMAND_LINE) for text in rest], findings)
    draft = paddle.read(path, told.whole("override") or [], cards, findings)
    draft.launch += ["-n", str(cards)] if cards else []
    return draft


def _paddle(rest: list[words.Word], spread: Spread, cards: int | None, findings: Findings) -> Draft:
    told = _train_py().read(rest, findings)
    if not told.has("config"):
        raise UsageError("tools/train.py: -c CONF.yaml is missing")
    if spread.total is not None and cards not in (None, spread.total):
        raise UsageError(f"--cards {cards} contradicts the command, which has {spread.total}")
    path = Path(told.text("config"))
    draft = paddle.read(
        path, told.whole("override") or [], spread.total or cards or (1 if not spread.by else None), findings
    )
    for key in ("profiler_options", "profile"):
        told.leave(key, "trace=20 records steps")
    draft.launch = [*spread.words(), *draft.launch]
    return draft


def _train_py() -> Flags:
    """The options of PaddleClas's tools/train.py."""
    known = Flags("tools/train.py").value("-c/--config", "-p/--profiler_options")
    return known.several("-o/--override").switch("--vdl", "--profile")
