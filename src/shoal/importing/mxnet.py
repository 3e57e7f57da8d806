"""MXNet: train_cifar10.py, train_imagenet.py and train_mnist.py of its image-classification example."""

from __future__ import annotations

from shoal.importing import mxnet_images
from shoal.importing.draft import Draft
from shoal.importing.findings import Findings
from shoal.importing.flags import Flags
from shoal.importing.settings import Settings, number
from shoal.importing.words import Word
from shoal.importing.wrappers import Spread
from shoal.models import check_name

CIFAR = {"network": "resnet", "num_layers": "110", "image_shape": "3,28,28", "pad_size": "4", "num_epochs": "300",
         "lr": ".05", "lr_step_epochs": "200,250"}  # fmt: skip
IMAGENET = {"network": "resnet", "num_layers": "50", "image_shape": "3,224,224", "num_epochs": "80",
            "lr": "0.1", "lr_step_epochs": "30,60"}  # fmt: skip
SCRIPTS = {"train_cifar10.py": CIFAR, "train_imagenet.py": IMAGENET}
"""Script -> what it does where no flag says otherwise (MXNet 1.9.1)."""

STRATEGIES = {"dist_sync": "sync", "dist_device_sync": "sync", "dist_sync_device": "sync", "dist_async": "async",
              "dist_device_async": "async"}  # fmt: skip
NETWORKS = {
    "alexnet": "alexnet",
    "googlenet": "googlenet",
    "inception-v3": "inception_v3",
    "inception-v4": "inception_v4",
    "inception-resnet-v2": "inception_resnet_v2",
    "mobilenet": "mobilenetv1_100",
    "mobilenetv2": "mobilenetv2_100",
}
OPTIMIZERS = {"nag": ("sgd", {"nesterov": True}), "sgd": ("sgd", {}), "adam": ("timm", {"opt": "adam"})}


def flags() -> Flags:
    """The options of common/fit.py and common/data.py."""
    known = Flags("MXNet's example")
    known.value("--network", "--num-layers", "--gpus", "--kv-store", "--num-epochs", "--lr", "--lr-factor")
    known.value("--lr-step-epochs", "--initializer", "--optimizer", "--mom", "--wd", "--batch-size", "--disp-batches")
    known.value("--model-prefix", "--save-period", "--monitor", "--load-epoch", "--top-k", "--loss", "--test-io")
    known.value("--dtype", "--gc-type", "--gc-threshold", "--macrobatch-size", "--warmup-epochs", "--warmup-strategy")
    known.value("--profile-worker-suffix", "--profile-server-suffix", "--data-train", "--data-train-idx")
    known.value("--data-val", "--data-val-idx", "--rgb-mean", "--rgb-std", "--image-shape", "--num-classes")
    known.value("--num-examples", "--data-nthreads", "--benchmark", "--use-python-iter", "--use-gpu-augmenter")
    known.value("--num-group", "--image-root", *mxnet_images.FLAGS)
    return known.maybe("--use-imagenet-data-augmentation")


def read(script: str, words: list[Word], spread: Spread, findings: Findings) -> Draft:
    """The recipe of `train_cifar10.py --network resnet …`."""
    name = script.removeprefix("train_").removesuffix(".py")
    if script not in SCRIPTS:
        where = words[0].where if words else "command line"
        findings.lack(
            where, script, f"only {' and '.join(SCRIPTS)} are known: its data and net are in the script itself"
        )
        return Draft(name, script)
    job = flags().read(words, findings)
    for key, value in SCRIPTS[script].items():
        if not job.has(key):
            job.values[key] = value
    epochs = job.count("num_epochs", 1) or 1
    side = _side(job)
    draft = Draft(
        f"{name}-{job.text('network')}{job.text('num_layers') if 'resn' in job.text('network') else ''}", script
    )
    draft.set("length", f"{epochs}ep")
    _data(job, draft, name == "cifar10", side)
    _model(job, draft, side)
    _steps(job, draft)
    _agreement(job, draft, spread)
    _times(job, draft, epochs)
    draft.launch = [*spread.words(), *draft.launch]
    return draft


def _side(job: Settings) -> int:
    shape = [number(part) for part in job.text("image_shape").split(",")]
    if len(shape) != 3 or None in shape:
        job.wrong("image_shape", f"expected channels,height,width as in 3,224,224; got {job.text('image_shape')}")
    return int(shape[-1] or 28) if shape else 28


def _data(job: Settings, draft: Draft, cifar: bool, side: int) -> None:
    train, val = job.text("data_train"), job.text("data_val")
    if job.flag("benchmark"):
        if train:
            job.wrong("benchmark", f"made-up images contradict --data-train {train}; give one of the two")
        draft.set("data", {"name": "synthetic", "size": side, "classes": int(job.number("num_classes", 10) or 10)})
    elif train:
        draft.set("data", {"name": "recordio", "path": train})
        if val:
            draft.set("data.val", val)
    elif cifar:
        fetched = "The script fetched CIFAR-10 into data/; data.download=true does so here."
        draft.set("data", {"name": "cifar10", "path": "data"}, fetched)
    else:
        job.wrong("data_train", "missing; which .rec holds the training images?")
    mxnet_images.read(job, draft, side, large=not cifar and not job.flag("benchmark"))
    for key, usual in (("rgb_mean", "123.68,116.779,103.939"), ("rgb_std", "1,1,1")):
        found = [number(part) for part in job.text(key, usual).split(",")]
        if len(found) != 3 or None in found:
            job.wrong(key, f"expected three numbers as in {usual}")
        elif train and (job.has(key) or (cifar and job.text("network") == "resnet")):  # that net normalises by itself
            draft.set(f"data.{key.removeprefix('rgb_')}", found)
    if threads := job.count("data_nthreads"):
        draft.set("data.threads", threads)
    for key in ("num_classes", "num_examples", "data_train_idx", "data_val_idx"):
        job.whole(key)  # counted in the data, and never typed in
    for key in ("use_python_iter", "use_gpu_augmenter"):
        job.leave(key, "images are decoded by threads, ahead of the training")


def _model(job: Settings, draft: Draft, side: int) -> None:
    network, layers = job.text("network"), int(job.number("num_layers", 0) or 0)
    network = network.removesuffix("_fp16")
    known = {"vgg": f"vgg{layers}", "resnext": f"resnext{layers}_32x4d", "resnet": f"mxnet-resnet{layers}-v2",
             "resnet-v1": f"mxnet-resnet{layers}-v1", **NETWORKS}  # fmt: skip
    if network in ("resnet", "resnet-v1") and side <= 28:
        deep = layers >= 164
        if (layers - 2) % (9 if deep else 6):
            job.wrong("num_layers", f"{layers} is no depth of that net for small images: 6n+2, or 9n+2 from 164 on")
        known[network] = f"cifar-{'pre' if network == 'resnet' else ''}resnet{layers}{'-bottleneck' if deep else ''}"
        if network == "resnet-v1":
            draft.say("model", "Shortcuts without parameters where MXNet's had projections.")
    ours = known.get(network)
    fault = check_name(ours) if ours else f"no such net here; known: {', '.join(sorted(known))}"
    if fault:
        job.lack("network", f"{network}: {fault}")
    draft.set(
        "model", ours or "resnet50", f"MXNet's {network}, {layers} layers." if layers and "net" in network else None
    )
    job.whole("num_group")
    initializer = job.text("initializer", "default")
    if initializer != "default":
        job.leave("initializer", "weights start as the net's paper has it")
    if job.text("loss"):
        job.leave("loss", "the cross-entropy is trained and told, always")


def _steps(job: Settings, draft: Draft) -> None:
    name = job.text("optimizer", "sgd").lower()
    if name not in OPTIMIZERS:
        job.lack("optimizer", f"{name} is not known to be the same here (`shoal list optims`)")
        name = "sgd"
    ours, options = OPTIMIZERS[name]
    momentum = {"momentum": job.number("mom", 0.9)} if ours == "sgd" else {}
    draft.set("optim", {"name": ours, **options, "lr": job.number("lr", 0.1), **momentum})
    job.whole("mom")
    draft.set("optim.weight_decay", job.number("wd", 1e-4))
    factor, steps = job.number("lr_factor", 0.1) or 0.1, job.text("lr_step_epochs")
    if steps.startswith("pow"):
        power = number(steps.removeprefix("pow").lstrip("- ")) or 2.0
        if power != 1:
            job.lack("lr_step_epochs", f"a fall by power {power:g}; linear and cosine are what there is")
        draft.set("schedule", "linear")
    elif factor < 1:
        at = [number(part) for part in steps.split(",")]
        if None in at:
            job.wrong("lr_step_epochs", f"expected epochs as in 30,60; got {steps}")
        else:
            draft.set(
                "schedule", {"name": "multistep", "at": [f"{epoch:g}ep" for epoch in at if epoch], "gamma": factor}
            )
    for key in ("warmup_epochs", "warmup_strategy"):
        job.leave(key, "MXNet used it with --optimizer lbsgd alone; schedule.warmup is a warm-up for any")
    if job.text("dtype", "float32") == "float16":
        halves = "--dtype float16: the net in float16, float32 masters, and a loss scale, which the script had not."
        draft.set("precision", "O2", halves)


def _agreement(job: Settings, draft: Draft, spread: Spread) -> None:
    store, gpus = job.text("kv_store", "device").lower(), [gpu for gpu in job.text("gpus").split(",") if gpu]
    batch, nodes = job.count("batch_size", 128) or 128, spread.workers or 1
    workers = nodes * max(1, len(gpus)) if store in STRATEGIES else 1
    pieces = workers if store in STRATEGIES else max(1, len(gpus))
    if (macro := int(job.number("macrobatch_size", 0) or 0)) > batch:
        pieces *= macro // batch
        batch = macro
    if store in STRATEGIES and spread.by is None:
        job.wrong("kv_store", f"{store} needs launch.py -n N in front, which says how many workers; here is none")
    elif store in ("local", "device") and nodes > 1:
        job.wrong("kv_store", f"{store} contradicts launch.py -n {nodes}: each worker would train a model of its own")
    elif store not in (*STRATEGIES, "local", "device"):
        job.wrong("kv_store", f"no type {store} (known: local, device, {', '.join(STRATEGIES)})")
    if store in STRATEGIES:
        mode = {"mode": "async"} if STRATEGIES[store] == "async" else {}
        draft.set("strategy", {"name": "ps", **mode} if mode else "ps")
        draft.set("batch", batch * nodes, f"batch {batch} per machine x {nodes} = batch {batch * nodes}")
        if len(gpus) > 1:
            draft.say("batch", f"A worker per GPU, {len(gpus)} on each machine.")
            spread.workers = workers
            spread.more += ["--nproc-per-node", str(len(gpus))]
        if mode:
            draft.say(
                "strategy",
                "MXNet damped no gradients, whatever came between (damping: false); its momentum counted pushes.",
            )
    else:
        draft.set("batch", batch)
        if len(gpus) > 1:
            draft.set("strategy", {"name": "dp", "kvstore": store, "devices": len(gpus)})
        if gpus and not spread.devices:
            spread.devices = ",".join(gpus)
    if pieces > 1:
        draft.set("shards", pieces)
    kind = job.text("gc_type", "none")
    if kind == "2bit" and store in STRATEGIES:
        draft.set(
            "strategy",
            {**_group(draft.get("strategy")), "compress": "2bit", "threshold": job.number("gc_threshold", 0.5)},
        )
    elif kind not in ("none", "2bit"):
        job.wrong("gc_type", f"expected none or 2bit, got {kind}")
    elif kind == "2bit":
        job.wrong("gc_type", f"2bit contradicts --kv-store {store}, which sends nothing")
    job.whole("gc_threshold")


def _times(job: Settings, draft: Draft, epochs: int) -> None:
    draft.set("log_every", f"{job.count('disp_batches', 20)}st")
    if every := job.count("save_period"):
        draft.set("save_every", f"{every}ep")
    if (monitor := job.number("monitor", 0)) and monitor >= 1:
        draft.set("monitor", f"{int(monitor)}st")
    prefix = job.text("model_prefix")
    if prefix:
        draft.launch += ["--run", prefix]
    if job.has("load_epoch"):
        at = int(job.number("load_epoch", 0) or 0)
        if not prefix:
            job.wrong("load_epoch", "contradicts itself without --model-prefix, which says whose epoch")
        elif at >= epochs:
            job.wrong("load_epoch", f"{at} leaves nothing of --num-epochs {epochs}")
        else:
            held = (
                f"{prefix}-{at:04d}.params holds weights alone, no momentum: `shoal import weights` it and train with"
            )
            job.leave("load_epoch", f"{held} model.pretrained=FILE; Shoal's own runs go on by themselves")
    for key, why in (("top_k", "top-1 is what is told; the predictions of a run hold the rest"),
                     ("test_io", "`shoal data show` and `shoal why` tell of the input's speed"),
                     ("profile_worker_suffix", "trace=20 records steps"),
                     ("profile_server_suffix", "trace=20 records steps")):  # fmt: skip
        if number(job.whole(key)) != 0:
            job.leave(key, why)


def _group(held: object) -> dict:
    return dict(held) if isinstance(held, dict) else {"name": held}
