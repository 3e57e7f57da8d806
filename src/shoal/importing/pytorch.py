"""PyTorch: main.py of its ImageNet example, the tutorials made of it (ND, DP, DDP), and Apex's main_amp.py."""

from __future__ import annotations

from shoal.importing.draft import Draft
from shoal.importing.findings import Findings
from shoal.importing.flags import Flags
from shoal.importing.settings import Settings
from shoal.importing.words import Word
from shoal.importing.wrappers import ON_EACH_NODE, Spread
from shoal.models import check_name

LEVELS = ("O0", "O1", "O2", "O3")
AUGMENT = {"size": 224, "resize": 256, "mirror": True}
MODELS = {"wide_resnet50_2": "wide_resnet50_2", "mobilenet_v2": "mobilenetv2_100", "inception_v3": "inception_v3",
          "mobilenet_v3_large": "mobilenetv3_large_100", "mobilenet_v3_small": "mobilenetv3_small_100",
          "vit_b_16": "vit_base_patch16_224", "vit_b_32": "vit_base_patch32_224", "vit_l_16": "vit_large_patch16_224",
          "swin_t": "swin_tiny_patch4_window7_224", "swin_s": "swin_small_patch4_window7_224",
          "swin_b": "swin_base_patch4_window7_224"}  # fmt: skip
"""torchvision's names where timm has another; the rest have one name in both."""


def flags() -> Flags:
    known = Flags("the ImageNet example")
    known.value("-a/--arch", "-j/--workers", "--epochs", "--start-epoch", "-b/--batch-size", "--lr/--learning-rate")
    known.value("--momentum", "--wd/--weight-decay", "-p/--print-freq", "--resume", "--world-size", "--rank")
    known.value("--dist-url", "--dist-backend", "--seed", "--gpu", "--desired-acc", "--local_rank/--local-rank")
    known.value("--opt-level", "--keep-batchnorm-fp32", "--loss-scale", "--prof", "--dist-file", "--static-loss-scale")
    known.switch("-e/--evaluate", "--pretrained", "--multiprocessing-distributed", "--dummy", "--no-accel")
    known.switch("--sync-bn/--sync_bn", "--deterministic", "--fp16", "--dynamic-loss-scale")
    return known.maybe("--channels-last").place("data")


def read(script: str, words: list[Word], spread: Spread, findings: Findings) -> Draft:
    """The recipe of `main.py -a resnet50 --epochs 90 IMAGENET`."""
    job = flags().read(words, findings)
    amp = script.startswith("main_amp") or "apex" in script
    amp = amp or any(job.has(key) for key in ("opt_level", "loss_scale", "keep_batchnorm_fp32", "sync_bn"))
    arch = job.text("arch", "resnet50" if script.startswith("imag") else "resnet18")
    ours = MODELS.get(arch, arch)
    draft = Draft(f"imagenet-{ours}", script)
    if fault := check_name(ours):
        job.lack("arch", f"{arch}: {fault}")
    draft.set("model", {"name": ours})
    if job.flag("pretrained"):
        draft.set("model.pretrained", True, "pretrained: timm's weights in the place of torchvision's.")
    data = job.text("data", "imagenet")
    if job.flag("dummy"):
        draft.set("data", {"name": "synthetic", "images": 4096, "classes": 1000, "size": 224})
    else:
        draft.set("data", {"name": "folder", "path": data.rstrip("/") or "/", "augment": dict(AUGMENT)})
    epochs = job.count("epochs", 90) or 90
    draft.set("length", f"{epochs}ep")
    if (begin := job.number("start_epoch", 0)) and begin > 0:
        job.leave("start_epoch", "a run knows where it stopped, and goes on from there")
    draft.set("optim", {"name": "sgd", "lr": job.number("lr", 0.1), "momentum": job.number("momentum", 0.9)})
    draft.set("optim.weight_decay", job.number("wd", job.number("weight_decay", 1e-4)))
    _batch(job, draft, spread, amp, script)
    if amp:
        _apex(job, draft)
    else:
        draft.set("schedule", {"name": "step", "every": "30ep", "gamma": 0.1})
    _others(job, draft)
    draft.launch = [*spread.words(), *draft.launch]
    return draft


def _batch(job: Settings, draft: Draft, spread: Spread, amp: bool, script: str) -> None:
    """-b was per node with mp.spawn, per process under a launcher, and of all GPUs otherwise."""
    spawned = job.flag("multiprocessing_distributed") or job.has("world_size") or "ddp" in script
    usual = 224 if amp else 1024 if "ddp" in script else 256
    size = job.count("batch_size", usual) or usual
    world, rank = job.number("world_size", -1) or -1, job.number("rank", -1)
    if job.has("gpu") and job.flag("multiprocessing_distributed"):
        job.wrong("gpu", "contradicts --multiprocessing-distributed, which takes all GPUs")
    if world > 0 and rank is not None and rank >= world:
        job.wrong("rank", f"{rank:g} contradicts --world-size {world:g}: nodes are counted from 0")
    address = job.text("dist_url").removeprefix("tcp://")
    if spread.by is not None:  # each process was given -b images
        count = spread.total
        if count is None:
            draft.set("batch_per_worker", size, f"-b {size} was per process, one per GPU.")
        else:
            draft.set("batch", size * count, f"batch {size} per process x {count} = batch {size * count}")
            draft.set("shards", count)
        if not amp and job.flag("multiprocessing_distributed"):
            job.wrong("multiprocessing_distributed", f"contradicts {spread.by}, which starts the processes")
    elif spawned:
        nodes = int(max(world, 1))
        draft.set("batch", size * nodes, f"batch {size} per node x {nodes} = batch {size * nodes}")
        if nodes > 1:
            spread.nodes, spread.node_rank = nodes, int(rank) if rank is not None and rank >= 0 else 0
            spread.rendezvous = address if address and ":" in address else "NODE0:23456"
            job.findings.leave(job.place("rank"), "a command on each node", ON_EACH_NODE)
    else:
        draft.set("batch", size)
        if job.has("gpu"):
            spread.devices = job.text("gpu")
            spread.workers = 1
        elif not amp and "nd" not in script.removesuffix(".py").split("_"):
            draft.set("strategy", "dp", "nn.DataParallel over all GPUs; strategy=ddp with -n N is faster.")
    backend = job.text("dist_backend", "nccl")
    if backend not in ("nccl", "gloo"):
        job.leave("dist_backend", "nccl between GPUs, gloo between CPUs")
    for key in ("local_rank", "dist_file"):
        job.whole(key)


def _apex(job: Settings, draft: Draft) -> None:
    """main_amp.py: rate by batch / 256, warm-up of 5 epochs, drops at 30, 60, 80."""
    draft.set("optim.lr_batch", 256, "The script scaled --lr by batch / 256.")
    draft.set("schedule", {"name": "multistep", "at": ["30ep", "60ep", "80ep"], "gamma": 0.1, "warmup": "5ep"})
    level = job.text("opt_level", "O0")
    if level not in LEVELS:
        job.wrong("opt_level", f"expected {', '.join(LEVELS)}; got {level}")
        return
    draft.set("precision", {"name": level})
    kept, scale = job.text("keep_batchnorm_fp32"), job.text("loss_scale")
    if kept not in ("", "None", "True", "False"):
        job.wrong("keep_batchnorm_fp32", f"expected True or False, got {kept}")
    elif kept in ("True", "False") and level == "O1":
        job.wrong("keep_batchnorm_fp32", "contradicts --opt-level O1, which leaves all parameters in float32")
    elif level == "O2" and kept in ("True", "False"):
        draft.set("precision.keep_batchnorm_fp32", kept == "True")
    elif level == "O3" and kept == "True":
        draft.set(
            "precision", {"name": "O2", "loss_scale": 1.0}, "O3 with BatchNorm in float32: O2's way, with a scale of 1."
        )
    if level == "O0" and scale not in ("", "None", "1", "1.0"):
        job.wrong("loss_scale", f"{scale} contradicts --opt-level O0, which computes in float32")
    elif scale and scale not in ("None", "dynamic"):
        if (fixed := job.number("loss_scale")) is not None and draft.get("precision.name") != "O0":
            draft.set("precision.loss_scale", fixed)
    elif scale == "dynamic" and level != "O0":
        draft.set("precision.loss_scale", "dynamic")


def _others(job: Settings, draft: Draft) -> None:
    if job.flag("sync_bn"):
        draft.set("norm", "sync")
    if job.flag("deterministic"):
        held = draft.get("strategy")
        draft.set("strategy", {"name": held} if isinstance(held, str) else {"name": "ddp"})
        if draft.get("norm") == "sync":
            job.wrong("deterministic", "contradicts --sync_bn: such statistics are added in no fixed order")
        else:
            draft.set("strategy.deterministic", True)
    if job.has("channels_last"):
        draft.set("model.channels_last", job.flag("channels_last", True))
    if accuracy := job.number("desired_acc"):
        draft.set("desired_accuracy", accuracy / 100 if accuracy > 1 else accuracy)
    if (seed := job.number("seed")) is not None:
        draft.set("seed", int(seed))
    if threads := job.count("workers"):
        draft.set("data.threads", threads, f"--workers {threads} were loader threads there; -n counts workers here.")
        if draft.get("data.name") == "synthetic":
            del draft.keys["data"]["threads"]
    draft.set("log_every", f"{job.count('print_freq', 10)}st")
    if job.flag("evaluate"):
        job.lack("evaluate", "this validates and trains nothing: shoal eval RUN")
    job.leave("resume", "its optimizer and schedule are a pickle; model.pretrained=FILE takes the weights out of it")
    job.leave("prof", "trace=20 records steps")
    job.leave("no_accel", "without GPUs Shoal computes on the CPU by itself")
    if job.flag("fp16"):  # before Apex had levels: the model in float16, float32 masters
        scale = "dynamic" if job.flag("dynamic_loss_scale") else job.number("static_loss_scale", 1.0)
        if job.has("opt_level"):
            job.wrong("fp16", "contradicts --opt-level, which says how much is float16")
        draft.set("precision", {"name": "O2", "loss_scale": scale})
    job.skip("dynamic_loss_scale", "static_loss_scale")
