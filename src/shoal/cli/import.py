"""`shoal import`: a job or weights of MXNet, PyTorch or PaddleClas, as Shoal's own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shoal.base.errors import FAILED, UsageError

if TYPE_CHECKING:
    from shoal.importing.draft import Draft
    from shoal.importing.findings import Findings

WORLDS = ("paddleclas", "mxnet", "pytorch", "horovod")


class Import(click.Command):
    """`shoal import weights …` is a command of its own."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> click.Context:
        if args[:1] == ["weights"]:
            return weights.make_context("import weights", args[1:], parent=parent, **extra)
        return super().make_context(info_name, args, parent=parent, **extra)


@click.command("import", cls=Import, short_help="Make a recipe of an old command line or YAML; take over weights.",
               context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})  # fmt: skip
@click.argument("words", nargs=-1, required=True, type=click.UNPROCESSED, metavar="WHAT…")
@click.option("--from", "world", type=click.Choice(WORLDS), help="Whose job it is. [default: found out]")
@click.option("--cards", type=click.IntRange(min=1), metavar="N",
              help="Cards that trained a YAML of PaddleClas, whose batch is per card. [default: not said]")  # fmt: skip
@click.option("--out", metavar="FILE", help="Where the recipe goes; - prints it. [default: NAME.yaml here]")
@click.option("--force", is_flag=True, help="Replace FILE where there is one.")
@click.option("--skip-unknown", is_flag=True, help="Go on without sections, keys and flags that nobody knows.")
def command(words: tuple[str, ...], world: str | None, cards: int | None, out: str | None, force: bool,
            skip_unknown: bool) -> int:  # fmt: skip
    """Write a recipe that trains what an old job trained, print the command that starts it, and list what is left out.

    WHAT is the job: a YAML of PaddleClas, a shell script with one command, or that command's own words. Options of this
    command go before it. Nothing in it is run or evaluated.

    \b
    shoal import ppcls/configs/ImageNet/ResNet/ResNet50.yaml -o Global.epochs=90
    shoal import python3 -m paddle.distributed.launch --gpus 0,1,2,3 tools/train.py -c ResNet50.yaml
    shoal import python tools/launch.py -n 4 -H hosts python train_cifar10.py --network resnet --kv-store dist_sync
    shoal import torchrun --nproc-per-node 4 main.py -a resnet50 -b 64 IMAGENET
    shoal import --out mine.yaml train.sh
    shoal import weights resnet-0090.params --to resnet.safetensors      (shoal import weights --help)

    Ends with 2 where the old job contradicts itself or says what nobody knows, with 1 where it cannot be trained here
    (a net that timm lacks, say); each reason with its place. Then no recipe is written.
    """
    from shoal.importing.findings import Findings
    from shoal.importing.recognise import read

    findings = Findings()
    draft = read(words, world, cards, findings)
    if skip_unknown:
        findings.skip_unknown()
    if findings.wrong:
        raise UsageError("\n".join(map(str, findings.wrong)))
    if findings.lacking:
        for one in findings.lacking:
            click.echo(str(one), err=True)
        click.echo(f"shoal: {draft.source}: cannot be trained here; nothing was written", err=True)
        return FAILED
    _write(draft, findings, out, force)
    return 0


def _write(draft: Draft, findings: Findings, out: str | None, force: bool) -> None:
    from shoal.base.files import write_whole
    from shoal.recipe.load import RecipeError, parse

    file = out if out not in (None, "-") else f"{draft.name}.yaml"
    if out not in (None, "-"):
        draft.name = Path(file).with_suffix("").as_posix()
    text = draft.text([f"{one.what}: {one.why}" for one in findings.left])
    try:
        parse(text, file)
    except RecipeError as error:  # a value that was taken as it stood, and that no recipe may have
        faults = [line.partition(": ")[2] for line in str(error).splitlines()]
        raise UsageError("\n".join(f"{draft.source}: becomes no recipe: {fault}" for fault in faults)) from None
    if out == "-":
        click.echo(text, nl=False)
    else:
        if Path(file).exists() and not force:
            raise UsageError(f"{file}: is there already; --out says where else, --force replaces it")
        try:
            write_whole(Path(file), text)
        except OSError as error:
            raise UsageError(f"--out {file}: cannot be written ({error.strerror})") from None
        click.echo(f"recipe   {file}")
        click.echo(f"train    {draft.command(file)}")
    for reasons in draft.reasons.values():
        for reason in reasons:
            click.echo(f"note: {reason}", err=True)
    for one in findings.left:
        click.echo(f"left out: {one}", err=True)


@click.command("weights")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--to", "out", type=click.Path(path_type=Path), metavar="FILE",
              help="The .safetensors to write. [default: FILE's name with that ending]")  # fmt: skip
@click.option("--model", metavar="NAME", help="The model they are for. [default: found out for MXNet's ResNets]")
@click.option("--force", is_flag=True, help="Replace the file where there is one.")
def weights(file: Path, out: Path | None, model: str | None, force: bool) -> int:
    """Write the weights of FILE with Shoal's names, for model.pretrained=….

    FILE is MXNet's .params (of its example's ResNets, or of Gluon's), or a .safetensors, .pt or .pth of torchvision or
    timm. Pickles are never opened: a .pdparams has to be written as .safetensors by Paddle itself first
    (docs/from-paddleclas.md).

    \b
    shoal import weights resnet-0090.params --to r50.safetensors
    shoal train my.yaml model=mxnet-resnet50-v2 model.pretrained=r50.safetensors
    """
    from shoal.importing.weights import convert

    target = out or file.with_suffix(".safetensors")
    if target.suffix != ".safetensors":
        raise UsageError(f"--to {target}: expected a name that ends in .safetensors")
    if target.exists() and not force:
        raise UsageError(f"{target}: is there already; --to says where else, --force replaces it")
    for line in convert(file, target, model):
        click.echo(line)
    return 0
