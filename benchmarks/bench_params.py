"""Weights that MXNet 1.9.1 wrote, imported: what the models here make of the same images, against MXNet's own outputs.

    bench_params.py [--keep FOLDER]

MXNet is installed into a throw-away environment (--keep: kept, and used again).
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from pairs import finish, machine, verdict
from peers import HERE, environment

from shoal.importing.weights import convert
from shoal.models import Model, create

GOAL = 1e-5
"""Largest difference of a logit, in parts of the largest logit: float32's rounding through some twenty layers."""
NETS = {
    "example-8": "cifar-preresnet8",
    "example-29": "cifar-preresnet29-bottleneck",
    **{f"example-{depth}-v{version}": f"mxnet-resnet{depth}-v{version}" for depth in (18, 50) for version in (1, 2)},
    **{f"resnet18_v1-{way}": "resnet18" for way in ("blocks", "prefixes")},
    **{
        f"resnet{net.replace('-', '_')}-{way}": f"gluon-resnet{net}"
        for net in ("50-v1", "18-v2", "34-v2", "50-v2")
        for way in ("blocks", "prefixes")
    },
}


def difference(folder: Path, name: str, model: str) -> float:
    convert(folder / f"{name}.params", folder / f"{name}.safetensors", model)
    held = np.load(folder / f"{name}.npz")
    wanted = Model(name=model, pretrained=str(folder / f"{name}.safetensors"))
    net = create(wanted, classes=held["outputs"].shape[1], channels=3, seed=0).module.eval()
    with torch.no_grad():
        ours = net(torch.from_numpy(held["images"])).numpy()
    return float(np.abs(ours - held["outputs"]).max() / np.abs(held["outputs"]).max())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", type=Path)
    options = parser.parse_args()
    print(machine())
    with tempfile.TemporaryDirectory() as spare:
        try:
            python = environment(options.keep or Path(spare), "mxnet")
        except ValueError as error:
            sys.exit(f"no MXNet here: {error}")
        folder = Path(spare)
        subprocess.run([str(python), str(HERE / "mxnet_params.py"), spare], check=True, capture_output=True)
        for name, model in NETS.items():
            found = difference(folder, name, model)
            what = f"{name}.params as {model}, largest difference in millionths of the largest logit"
            verdict(what, 1e6 * found, f"<= {1e6 * GOAL:g}", found <= GOAL)
    finish()


if __name__ == "__main__":
    main()
