"""The lab's net in MXNet 1.9.1 (its own engine, Module API), on prepared batches: images/s of this worker, as JSON.

python mxnet_resnet.py KVSTORE BATCH STEPS      under a launcher that sets DMLC_* where KVSTORE is dist_*
"""

import json
import os
import sys
import time

import numpy as np

np.bool = bool  # MXNet 1.9.1 asks for names that numpy has given up
import mxnet as mx  # noqa: E402  # pyright: ignore[reportMissingImports]

CLASSES, SIZE, WARM = 10, 28, 5


def unit(data, filters, stride, same, name):
    """A pre-activation residual unit."""
    bn = {"fix_gamma": False, "eps": 2e-5, "momentum": 0.9}
    act1 = mx.sym.Activation(mx.sym.BatchNorm(data, name=name + "_bn1", **bn), act_type="relu")
    conv = {"num_filter": filters, "no_bias": True, "kernel": (3, 3), "pad": (1, 1)}
    out = mx.sym.Convolution(act1, name=name + "_conv1", stride=stride, **conv)
    act2 = mx.sym.Activation(mx.sym.BatchNorm(out, name=name + "_bn2", **bn), act_type="relu")
    out = mx.sym.Convolution(act2, name=name + "_conv2", stride=(1, 1), **conv)
    if not same:
        one = {"num_filter": filters, "no_bias": True, "kernel": (1, 1)}
        data = mx.sym.Convolution(act1, name=name + "_sc", stride=stride, **one)
    return out + data


def resnet8():
    data = mx.sym.BatchNorm(mx.sym.Variable("data"), fix_gamma=True, eps=2e-5, momentum=0.9, name="bn_data")
    body = mx.sym.Convolution(data, num_filter=16, kernel=(3, 3), pad=(1, 1), no_bias=True, name="conv0")
    for stage, (filters, stride, same) in enumerate(((16, 1, True), (32, 2, False), (64, 2, False))):
        body = unit(body, filters, (stride, stride), same, f"stage{stage}")
    body = mx.sym.Activation(mx.sym.BatchNorm(body, fix_gamma=False, eps=2e-5, name="bn1"), act_type="relu")
    body = mx.sym.Pooling(body, global_pool=True, kernel=(7, 7), pool_type="avg")
    return mx.sym.SoftmaxOutput(mx.sym.FullyConnected(mx.sym.Flatten(body), num_hidden=CLASSES), name="softmax")


def main():
    kind, batch, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    store = mx.kv.create(kind)
    module = mx.mod.Module(resnet8(), context=mx.cpu())
    shape = (batch, 3, SIZE, SIZE)
    module.bind(data_shapes=[("data", shape)], label_shapes=[("softmax_label", (batch,))])
    module.init_params(mx.init.Xavier(rnd_type="gaussian", factor_type="in", magnitude=2))
    options = {"learning_rate": 0.05, "momentum": 0.9, "wd": 1e-4}
    module.init_optimizer(kvstore=store, optimizer="sgd", optimizer_params=options)
    data = mx.nd.array(np.random.RandomState(1).randn(*shape))
    prepared = mx.io.DataBatch(data=[data], label=[mx.nd.array(np.arange(batch) % CLASSES)])
    for step in range(WARM + steps):
        if step == WARM:
            mx.nd.waitall()
            began = time.time()
        module.forward_backward(prepared)
        module.update()
    mx.nd.waitall()
    print(json.dumps({"images_per_s": steps * batch / (time.time() - began)}), flush=True)
    os._exit(0) if store.num_workers == 1 else store._barrier()


if __name__ == "__main__":
    main()
