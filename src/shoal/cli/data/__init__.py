"""`shoal data`: what images lie at a path, and packing them; one file per command."""

from __future__ import annotations

import click

from shoal.cli.data.check import check
from shoal.cli.data.io import input_output
from shoal.cli.data.pack import pack
from shoal.cli.data.show import show


@click.group("data", short_help="Show what images lie at a path; pack or mend them.")
def command() -> None:
    """Images on the disk, before a training: what they are, what is wrong with them, and the way to mend it.

    \b
    shoal data show imagenet
    shoal data pack imagenet/val imagenet/val-by-class --labels val.txt --classes imagenet/train
    shoal data pack imagenet/train imagenet_train.rec
    shoal data check imagenet_train.rec
    shoal data io imagenet-resnet50 data.path=imagenet
    """


for each in (show, pack, check, input_output):
    command.add_command(each)
