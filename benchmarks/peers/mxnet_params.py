"""Weights as MXNet 1.9.1 writes them, with what its nets make of images: NAME.params, NAME.npz.

python mxnet_params.py FOLDER      the example's pre-activation ResNet-14, and Gluon's resnet18_v1, saved in two ways
"""

import sys
from pathlib import Path

import numpy as np

np.bool = bool  # MXNet 1.9.1 asks for names that numpy has given up
import mxnet as mx  # noqa: E402  # pyright: ignore[reportMissingImports]

CLASSES = 10


def spread(name, shape, rng):
    """Numbers as after a training: an array under another's name would change the outputs."""
    low, high = (0.5, 1.5) if name.endswith(("gamma", "var")) else (-0.3, 0.3)
    return mx.nd.array(rng.uniform(low, high, shape))


def unit(data, filters, stride, same, name):
    bn = {"fix_gamma": False, "eps": 2e-5, "momentum": 0.9}
    conv = {"num_filter": filters, "no_bias": True, "kernel": (3, 3), "pad": (1, 1)}
    act1 = mx.sym.Activation(mx.sym.BatchNorm(data, name=name + "_bn1", **bn), act_type="relu")
    out = mx.sym.Convolution(act1, name=name + "_conv1", stride=stride, **conv)
    act2 = mx.sym.Activation(mx.sym.BatchNorm(out, name=name + "_bn2", **bn), act_type="relu")
    out = mx.sym.Convolution(act2, name=name + "_conv2", **conv)
    if not same:
        one = {"num_filter": filters, "no_bias": True, "kernel": (1, 1)}
        data = mx.sym.Convolution(act1, name=name + "_sc", stride=stride, **one)
    return out + data


def example(folder, rng):
    body = mx.sym.BatchNorm(mx.sym.Variable("data"), fix_gamma=True, eps=2e-5, name="bn_data")
    body = mx.sym.Convolution(body, num_filter=16, kernel=(3, 3), pad=(1, 1), no_bias=True, name="conv0")
    for stage, filters in enumerate((16, 32, 64), 1):
        stride = 1 if stage == 1 else 2
        body = unit(body, filters, (stride, stride), False, f"stage{stage}_unit1")
        body = unit(body, filters, (1, 1), True, f"stage{stage}_unit2")
    body = mx.sym.Activation(mx.sym.BatchNorm(body, fix_gamma=False, eps=2e-5, name="bn1"), act_type="relu")
    body = mx.sym.Pooling(body, global_pool=True, kernel=(7, 7), pool_type="avg")
    body = mx.sym.FullyConnected(mx.sym.Flatten(body), num_hidden=CLASSES, name="fc1")
    module = mx.mod.Module(body, label_names=None)
    images = rng.uniform(-2, 2, (4, 3, 28, 28)).astype("float32")
    module.bind([("data", images.shape)], for_training=False)
    module.init_params(mx.init.Xavier())
    arrays, states = module.get_params()
    arrays = {key: spread(key, held.shape, rng) if held.ndim == 1 else held for key, held in arrays.items()}
    states = {key: spread(key, held.shape, rng) for key, held in states.items()}
    module.set_params(arrays, states)
    module.forward(mx.io.DataBatch([mx.nd.array(images)]), is_train=False)
    module.save_params(str(folder / "example.params"))
    np.savez(folder / "example.npz", images=images, outputs=module.get_outputs()[0].asnumpy())


def gluon(folder, rng):
    net = mx.gluon.model_zoo.vision.resnet18_v1(classes=CLASSES)
    net.initialize(mx.init.Xavier())
    images = mx.nd.array(rng.uniform(-2, 2, (2, 3, 64, 64)))
    net(images)
    for parameter in net.collect_params().values():
        if len(parameter.shape) == 1:
            parameter.set_data(spread(parameter.name, parameter.shape, rng))
    outputs = net(images).asnumpy()
    net.save_parameters(str(folder / "gluon-blocks.params"))
    net.collect_params().save(str(folder / "gluon-prefixes.params"))
    for name in ("gluon-blocks", "gluon-prefixes"):
        np.savez(folder / f"{name}.npz", images=images.asnumpy(), outputs=outputs)


if __name__ == "__main__":
    mx.random.seed(1)
    example(Path(sys.argv[1]), np.random.RandomState(0))
    gluon(Path(sys.argv[1]), np.random.RandomState(0))
