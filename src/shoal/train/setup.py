"""From a recipe to something that can train or validate: opened data, a model, a rig, a clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec
import torch

from shoal import __version__, models
from shoal.base.duration import Span
from shoal.base.errors import UsageError, first_line
from shoal.data.batches import Batches, Cut
from shoal.data.decode import Pictures
from shoal.data.order import order
from shoal.data.source import NO_IMAGE, NO_LABEL, Encoded, Pixels
from shoal.data.upload import Upload
from shoal.recipe.load import plain
from shoal.recipe.recipe import Recipe
from shoal.step.gang import Gang
from shoal.step.inputs import Inputs
from shoal.step.task import Task, TwoPartTask
from shoal.strategies import Rig, RigSpec
from shoal.train.clock import Clock
from shoal.train.teacher import Known
from shoal.train.teaching import taught


@dataclass(frozen=True)
class Data:
    """Both splits of a recipe's source, checked against its augmentation and model."""

    train: Pixels | Encoded
    val: Pixels | Encoded
    classes: int
    """Outputs of the model."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What the splits have to say."""
        return tuple(f"data, {split}: {note}" for split, images in self._splits for note in images.notes)

    @property
    def told(self) -> tuple[str, ...]:
        """Where their images come from."""
        return tuple(f"data, {split}: {images.told}" for split, images in self._splits if images.told)

    @property
    def _splits(self) -> tuple[tuple[str, Pixels | Encoded], ...]:
        return (("train", self.train), ("val", self.val))


def open_data(recipe: Recipe) -> Data:
    """Opens both splits. UsageError when labels or crops do not fit, or are missing."""
    source: Any = recipe.data
    train, val = source.open("train"), source.open("val")
    classes = recipe.model.classes or len(train.classes)
    for split, images in (("train", train), ("val", val)):
        if not len(images.labels):
            raise UsageError(f"data: {source.name} has no {split} images")
        for wrong in (int(images.labels.max()), int(images.labels.min())):
            if not NO_IMAGE <= wrong < classes:
                at = int((images.labels == wrong).argmax())
                raise UsageError(
                    f"data: {source.name}, {split} image {at} has label {wrong}, but the model has {classes} outputs "
                    f"(labels 0 to {classes - 1}); leave out model.classes or raise it"
                )
        source.check(images)
    if not isinstance(recipe.task, TwoPartTask) and (train.labels == NO_LABEL).any():
        at, count = int((train.labels == NO_LABEL).argmax()), int((train.labels == NO_LABEL).sum())
        raise UsageError(
            f"data: {source.name}, train image {at} has no label{f' (nor have {count - 1:,} more)' * (count > 1)}, and "
            f"task {recipe.task.name} learns from labels alone; leave such images out, or give them a teacher "
            "(task=distill)"
        )
    return Data(train, val, classes)


def cut_of(recipe: Recipe, images: int, gang: Gang) -> Cut:
    """How this recipe's batches are cut for this gang."""
    batch, shards = recipe.batch_for(gang.num_ranks), recipe.shards_for(gang.num_ranks)
    strategy: Any = recipe.strategy
    source: Any = recipe.data
    strategy.check(gang.num_ranks, gang.num_servers, shards)
    recipe.check_cut(gang.num_ranks)
    if recipe.drop_last:
        if images < batch:
            raise UsageError(f"drop_last: a batch of {batch} is more than the {images} training images")
        images -= images % batch
    replica, num_replicas = gang.place
    return Cut(
        Span(images, batch),
        shards,
        recipe.seed,
        replica=replica,
        num_replicas=num_replicas,
        merged=recipe.norm == "sync",
        shuffle=source.shuffle,
    )


def make_model(recipe: Recipe, classes: int, channels: int, *, pretrained: bool) -> models.Created:
    """The recipe's model; without its pretrained weights where others are about to be loaded."""
    options = recipe.model if pretrained else msgspec.structs.replace(recipe.model, pretrained=False)
    return models.create(options, classes=classes, channels=channels, seed=recipe.seed)


@dataclass(frozen=True)
class Setup:
    """A recipe set up for one worker: all that a training needs but its run folder."""

    recipe: Recipe
    gang: Gang
    data: Data
    cut: Cut
    clock: Clock
    rig: Rig
    notes: tuple[str, ...]
    """What opening the data and making the model have to say."""
    teacher: Known | None = None

    @staticmethod
    def of(
        recipe: Recipe, gang: Gang, data: Data, *, pretrained: bool = True, beat: Callable[[], None] = lambda: None
    ) -> Setup:
        """Every rank calls it. pretrained: False where weights are about to be loaded from a checkpoint. beat: called
        now and then where it takes long."""
        precision, told = recipe.precision.suited(gang.device)  # type: ignore[attr-defined]
        recipe = msgspec.structs.replace(recipe, precision=precision)
        cut = cut_of(recipe, len(data.train.labels), gang)
        clock = Clock(cut.span, recipe.length)
        created = make_model(recipe, data.classes, data.train.shape[0], pretrained=pretrained)
        _try(created.module, recipe, data)
        if pretrained and not recipe.model.pretrained:
            _start_from_images(created.module, recipe, data, gang)
        task, teacher = taught(recipe, data, gang, beat)
        rig = _rig(recipe, task, created.module, data, clock, cut, gang)
        notes = (*data.notes, *_unmixed(recipe, data), *created.notes, *((told,) if told else ()))
        return Setup(recipe, gang, data, cut, clock, rig, notes, teacher)

    @cached_property
    def upload(self) -> Upload:
        """The way of images to this worker's device."""
        return Upload(self.gang.device, ahead=not self.rig.spreads)

    def batches(self, cut: Cut | None = None) -> Batches:
        """Training batches, made ahead of their steps as the recipe's data says. cut: another one than the setup's."""
        source: Any = self.recipe.data
        return Batches(
            self.data.train,
            source.augment,
            cut or self.cut,
            thread=source.threads > 0,
            decoders=source.threads,
            upload=self.upload,
        )


def _unmixed(recipe: Recipe, data: Data) -> tuple[str, ...]:
    """Images in blocks that lie class after class."""
    source: Any = recipe.data
    labels = data.train.labels
    if source.shuffle.block is None or labels.min() == labels.max() or (labels[1:] < labels[:-1]).any():
        return ()
    return (
        "data.shuffle.block: the images lie class after class, so that few classes come together; mix them "
        "(shoal data pack --shuffle) or leave it out",
    )


def shown(recipe: Recipe, data: Data) -> tuple[int, int, int]:
    """Channels, height and width of what the model is shown."""
    source: Any = recipe.data
    return (data.train.shape[0], *source.augment.seen(*data.train.shape[1:]))


def _try(model: torch.nn.Module, recipe: Recipe, data: Data) -> None:
    """Shows the model one blank image: many take only some sizes or channels, and say so in a tongue of their own."""
    shape = shown(recipe, data)
    try:
        with torch.inference_mode():
            logits = model.eval()(torch.zeros(1, *shape))
    except Exception as error:
        reason = first_line(error)
        sizes = " x ".join(map(str, shape))
        raise UsageError(f"model: {recipe.model.name} does not take images of {sizes} ({reason})") from error
    if tuple(logits.shape) != (1, data.classes):
        raise UsageError(
            f"model: {recipe.model.name} gives {list(logits.shape)}, not one logit per class [1, {data.classes}]"
        )
    model.train()


STARTING_IMAGES = 5000
"""Training images that a model sees which computes first weights from them."""


def _start_from_images(model: Any, recipe: Recipe, data: Data, gang: Gang) -> None:
    """Has a model with a `start_from` compute those weights that it takes from images; equal on every rank."""
    if not hasattr(model, "start_from"):
        return
    source: Any = recipe.data
    if gang.leads:
        chosen = order(len(data.train.labels), recipe.seed, 0)[:STARTING_IMAGES]
        images, _ = Pictures(data.train, source.augment, source.threads).val(chosen)
        device = torch.device("cpu")
        model.start_from(Inputs(data.train.mean, data.train.std, torch.float64, device)(torch.from_numpy(images)))
    for tensor in model.state_dict().values():
        sent = tensor.to(gang.device).contiguous()
        gang.broadcast(sent)
        tensor.copy_(sent)


def _rig(recipe: Recipe, task: Task, model: torch.nn.Module, data: Data, clock: Clock, cut: Cut, gang: Gang) -> Rig:
    optim: Any = recipe.optim
    strategy: Any = recipe.strategy
    spec = RigSpec(
        seed=recipe.seed,
        shards=cut.shards,
        batch=cut.span.batch,
        images_per_epoch=cut.span.images_per_epoch,
        norm=recipe.norm,
        clip_norm=optim.clip_norm,
        ema_half_life=float(recipe.ema.half_life.images(clock.span)) if recipe.ema else None,
        mean=data.train.mean,
        std=data.train.std,
        shape=shown(recipe, data),
        channels_last=recipe.model.channels_last,
        compile=recipe.model.compile,
    )
    return strategy.rig(model, optim.make, task, recipe.precision, gang, spec)


def manifest(recipe: Recipe, name: str, data: Data, threads: int, teacher: Known | None = None) -> dict[str, Any]:
    """What a checkpoint says of itself, so that it can be used without its Run."""
    return {
        "shoal": __version__,
        "torch": torch.__version__,
        "name": name,
        "recipe": plain(recipe),
        "classes": list(data.train.classes),
        "outputs": data.classes,
        "shape": list(data.train.shape),
        "mean": list(data.train.mean),
        "std": list(data.train.std),
        "threads": threads,
        **({"teacher": teacher.told()} if teacher else {}),
    }
