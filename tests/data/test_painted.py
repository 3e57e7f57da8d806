"""All augmentations together, as Pictures applies them: the sample's own in any batch, by any number of threads."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.data.augment import Affine, Augment, Colour, Cutout, Erase
from shoal.data.augment.policies.randaugment import RandAugment
from shoal.data.augment.policies.trivialaugment import TrivialAugment
from shoal.data.decode import Pictures
from shoal.data.source import Held
from small_images import picture

COLOURS = {"mean": (120.0, 110.0, 100.0), "std": (60.0, 60.0, 60.0)}
HELD = Held(np.stack([picture(number, 20, 24).transpose(2, 0, 1) for number in range(30)]), np.arange(30) % 3,
            ("a", "b", "c"), **COLOURS)  # fmt: skip
KINDS = {
    "affine": [None, Affine(rotate=30, shear=0.1)],
    "policy": [None, RandAugment(filter="linear"), TrivialAugment()],
    "colour": [None, Colour(brightness=0.4, contrast=0.4, saturation=0.4, hls=(36, 50, 50), pca=0.1)],
    "erase": [None, Erase(), Erase(probability=1, paint="noise")],
    "cutout": [None, Cutout(side=8, count=2)],
}
augments = st.builds(
    Augment,
    mirror=st.sampled_from([False, True, "alternate"]),
    **{key: st.sampled_from(kinds) for key, kinds in KINDS.items()},
)


@given(augment=augments, large=st.booleans(), chosen=st.permutations(range(30)), size=st.integers(1, 30))
@settings(max_examples=25)
def test_an_image_looks_the_same_in_any_batch_by_any_number_of_threads(augment, large, chosen, size):
    augment = Augment(**{key: getattr(augment, key) for key in ("mirror", *KINDS)}, size=16 if large else None)
    some = np.array(chosen[:size])
    whole, _ = Pictures(HELD, augment).train(np.arange(30), seed=1, epoch=2)
    threads = torch.get_num_threads()
    torch.set_num_threads(3 - min(threads, 2))
    part, labels = Pictures(HELD, augment, 3).train(some, seed=1, epoch=2)
    torch.set_num_threads(threads)
    assert part.dtype == np.uint8 and part.shape == (size, 3, *((16, 16) if large else (20, 24)))
    assert np.array_equal(part, whole[some]) and np.array_equal(labels, some % 3)


@pytest.mark.parametrize("key", KINDS)
@pytest.mark.parametrize("size", [None, 16], ids=["whole", "parts"])
def test_each_changes_training_images_and_leaves_those_held_and_validation_alone(key, size):
    before = HELD.images.copy()
    plain, augment = (Augment(size=size, **{key: kind}) for kind in (None, KINDS[key][1]))
    everything = np.arange(30)
    looks = [Pictures(HELD, one).train(everything, seed=0, epoch=epoch)[0]
             for one, epoch in ((plain, 0), (augment, 0), (augment, 1))]  # fmt: skip
    assert len({look.tobytes() for look in looks}) == 3
    assert np.array_equal(*(Pictures(HELD, one).val(everything)[0] for one in (plain, augment)))
    assert np.array_equal(HELD.images, before)
    assert plain.random(20, 24) == (size and "size") and augment.random(20, 24) == ("size" if size else key)


def test_the_global_generators_are_left_alone():
    import random

    np.random.seed(1), torch.manual_seed(1), random.seed(1)
    augment = Augment(mirror=True, **{key: kinds[-1] for key, kinds in KINDS.items()})
    Pictures(HELD, augment).train(np.arange(30), seed=0, epoch=0)
    drawn = np.random.random(), torch.rand(()).item(), random.random()
    np.random.seed(1), torch.manual_seed(1), random.seed(1)
    assert drawn == (np.random.random(), torch.rand(()).item(), random.random())


def test_colours_of_three_channels_need_three():
    augment = Augment(colour=Colour(pca=0.1))
    assert augment.fault(3, 8, 8) is None
    told = "colour.pca is of red, green and blue, and these images have 1 channel"
    assert augment.fault(1, 8, 8) == told
