"""Weights as MXNet 1.9.1 writes them, with what its nets make of images: NAME.params, NAME.npz.

python mxnet_params.py FOLDER      its example's and Gluon's ResNets; Gluon's saved in two ways
"""

import sys
from pathlib import Path

import numpy as np

np.bool = bool  # MXNet 1.9.1 asks for names that numpy has given up
import mxnet as mx  # noqa: E402  # pyright: ignore[reportMissingImports]

CLASSES = 10
EXAMPLES = {  # units, filters, version
    "example-8": ((1, 1, 1), (16, 16, 32, 64), 2),
    "example-29": ((3, 3, 3), (16, 64, 128, 256), 2),
    "example-18-v1": ((2, 2, 2, 2), (64, 64, 128, 256, 512), 1),
    "example-18-v2": ((2, 2, 2, 2), (64, 64, 128, 256, 512), 2),
    "example-50-v1": ((3, 4, 6, 3), (64, 256, 512, 1024, 2048), 1),
    "example-50-v2": ((3, 4, 6, 3), (64, 256, 512, 1024, 2048), 2),
}
GLUON = ("resnet18_v1", "resnet50_v1", "resnet18_v2", "resnet34_v2", "resnet50_v2")


def spread(name, shape, rng):
    """Numbers as after a training: an array under another's name would change the outputs."""
    low, high = (0.5, 1.5) if name.endswith(("gamma", "var")) else (-0.3, 0.3)
    return mx.nd.array(rng.uniform(low, high, shape))


def norm(data, name, fix_gamma=False):
    return mx.sym.BatchNorm(data, name=name, fix_gamma=fix_gamma, eps=2e-5, momentum=0.9)


def conv(data, name, filters, kernel, stride=1):
    sizes = {"kernel": (kernel, kernel), "stride": (stride, stride), "pad": (kernel // 2, kernel // 2)}
    return mx.sym.Convolution(data, name=name, num_filter=filters, no_bias=True, **sizes)


def relu(data):
    return mx.sym.Activation(data, act_type="relu")


def unit(data, filters, stride, first, deep, version, name):
    """A residual unit of symbols/resnet.py (version 2) or symbols/resnet-v1.py."""
    inner = [(filters // 4, 1), (filters // 4, 3), (filters, 1)] if deep else [(filters, 3), (filters, 3)]
    strided = 1 if deep and version == 2 else 0
    body = data if version == 1 else relu(norm(data, f"{name}_bn1"))
    shortcut = data
    if first:
        shortcut = conv(body, f"{name}_conv1sc" if version == 1 else f"{name}_sc", filters, 1, stride)
        shortcut = norm(shortcut, f"{name}_sc") if version == 1 else shortcut
    for number, (width, kernel) in enumerate(inner, 1):
        if version == 2 and number > 1:
            body = relu(norm(body, f"{name}_bn{number}"))
        body = conv(body, f"{name}_conv{number}", width, kernel, stride if number - 1 == strided else 1)
        if version == 1:
            body = norm(body, f"{name}_bn{number}")
            body = relu(body) if number < len(inner) else body
    return relu(body + shortcut) if version == 1 else body + shortcut


def symbol(units, filters, version):
    large, deep = len(units) == 4, filters[1] in (64, 256) and filters[-1] in (256, 2048)
    body = mx.sym.Variable("data")
    body = norm(body, "bn_data", fix_gamma=True) if version == 2 else body
    body = conv(body, "conv0", filters[0], 7 if large else 3, 2 if large else 1)
    if large:
        body = relu(norm(body, "bn0"))
        body = mx.sym.Pooling(body, kernel=(3, 3), stride=(2, 2), pad=(1, 1), pool_type="max")
    for stage, count in enumerate(units):
        for number in range(count):
            stride = 2 if stage > 0 and number == 0 else 1
            name = f"stage{stage + 1}_unit{number + 1}"
            body = unit(body, filters[stage + 1], stride, number == 0, deep, version, name)
    body = relu(norm(body, "bn1")) if version == 2 else body
    body = mx.sym.Pooling(body, global_pool=True, kernel=(7, 7), pool_type="avg")
    return mx.sym.FullyConnected(mx.sym.Flatten(body), num_hidden=CLASSES, name="fc1")


def example(folder, name, rng):
    module = mx.mod.Module(symbol(*EXAMPLES[name]), label_names=None)
    side = 96 if len(EXAMPLES[name][0]) == 4 else 28
    images = rng.uniform(-2, 2, (4, 3, side, side)).astype("float32")
    module.bind([("data", images.shape)], for_training=False)
    module.init_params(mx.init.Xavier())
    arrays, states = module.get_params()
    arrays = {key: spread(key, held.shape, rng) if held.ndim == 1 else held for key, held in arrays.items()}
    states = {key: spread(key, held.shape, rng) for key, held in states.items()}
    module.set_params(arrays, states)
    module.forward(mx.io.DataBatch([mx.nd.array(images)]), is_train=False)
    module.save_params(str(folder / f"{name}.params"))
    np.savez(folder / f"{name}.npz", images=images, outputs=module.get_outputs()[0].asnumpy())


def gluon(folder, name, rng):
    net = getattr(mx.gluon.model_zoo.vision, name)(classes=CLASSES)
    net.initialize(mx.init.Xavier())
    images = mx.nd.array(rng.uniform(-2, 2, (2, 3, 96, 96)))
    net(images)
    for parameter in net.collect_params().values():
        if len(parameter.shape) == 1:
            parameter.set_data(spread(parameter.name, parameter.shape, rng))
    outputs = net(images).asnumpy()
    net.save_parameters(str(folder / f"{name}-blocks.params"))
    net.collect_params().save(str(folder / f"{name}-prefixes.params"))
    for way in ("blocks", "prefixes"):
        np.savez(folder / f"{name}-{way}.npz", images=images.asnumpy(), outputs=outputs)


if __name__ == "__main__":
    mx.random.seed(1)
    for made in EXAMPLES:
        example(Path(sys.argv[1]), made, np.random.RandomState(0))
    for made in GLUON:
        gluon(Path(sys.argv[1]), made, np.random.RandomState(0))
