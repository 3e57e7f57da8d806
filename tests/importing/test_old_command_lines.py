"""Command lines of the old tutorials, as their pages have them, and what contradicts itself in others."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from old_jobs import CONF, found, imported

from shoal.base.errors import UsageError
from shoal.recipe.load import plain

TUTORIALS = {
    # MXNet's example and the lab that was made of it
    "python train_cifar10.py --network resnet --num-layers 110 --batch-size 128 --gpus 0,1": {
        "model.name": "cifar-preresnet110",
        "strategy.name": "dp",
        "strategy.devices": 2,
        "batch": 128,
        "length": "300ep",
    },
    "python train_cifar10.py --network resnet --num-layers 8 --batch-size 128 --num-epochs 1 --lr 0.05 "
    "--kv-store local": {
        "model.name": "cifar-preresnet8",
        "data.augment.crop": 28,
        "data.augment.pad": 4,
        "optim.lr": 0.05,
        "length": "1ep",
    },
    "../../tools/launch.py -n 2 -H hosts python train_cifar10.py --network resnet --num-layers 110 --batch-size 128 "
    "--gpus 0,1 --kv-store dist_device_sync": {
        "batch": 256,
        "shards": 4,
        "strategy.name": "ps",
        "strategy.mode": "sync",
    },
    "python ../../tools/launch.py -n 4 -s 4 --launcher local python train_cifar10.py --network resnet --num-layers 8 "
    "--batch-size 128 --kv-store dist_async": {"batch": 512, "strategy.mode": "async"},
    "python train_imagenet.py --benchmark 1 --gpus 0 --network inception-v3 --batch-size 64 --image-shape 3,299,299 "
    "--num-epochs 1 --kv-store device": {"model.name": "inception_v3", "data.name": "synthetic", "data.size": 299},
    "python train_imagenet.py --network resnet --num-layers 152 --data-train T.rec --data-val V.rec --dtype float16": {
        "model.name": "mxnet-resnet152-v2",
        "data.name": "recordio",
        "data.val": "V.rec",
        "precision.name": "O2",
    },
    "python train_cifar10.py --network resnet --num-layers 8 --max-random-rotate-angle 10 --max-random-shear-ratio 0.1 "
    "--max-random-aspect-ratio 0.25 --min-random-scale 0.8 --max-random-scale 1.2 --max-random-h 36 --max-random-s 50 "
    "--max-random-l 40 --pca-noise 0.1": {
        "data.augment.affine": {"rotate": 10.0, "shear": 0.1, "scale": [0.8, 1.2], "ratio": [0.75, 1.25]},
        "data.augment.colour": {
            "brightness": 0.0,
            "contrast": 0.0,
            "saturation": 0.0,
            "hls": [36.0, 40.0, 50.0],
            "pca": 0.1,
        },
        "data.augment.fill": 127,
        "data.augment.pad": 4,
        "data.augment.crop": 28,
    },
    "python train_imagenet.py --data-train T.rec --data-val V.rec --use-imagenet-data-augmentation 1 --saturation 0.2 "
    "--max-random-rotate-angle 5": {
        "data.augment.scale": [0.08, 1.0],
        "data.augment.ratio": [0.75, 1.3333],
        "data.augment.mirror": True,
        "data.augment.colour.brightness": 0.4,
        "data.augment.colour.saturation": 0.2,
        "data.augment.colour.pca": 0.1,
        "data.augment.affine.rotate": 5.0,
        "data.augment.fill": 127,
    },
    # The PyTorch ImageNet example
    "python main.py -a resnet18 IMAGENET": {
        "model.name": "resnet18",
        "batch": 256,
        "strategy.name": "dp",
        "schedule.every": "30ep",
        "length": "90ep",
    },
    "python main.py -a alexnet --lr 0.01 IMAGENET": {"model.name": "alexnet", "optim.lr": 0.01},
    "python main.py -a resnet50 --dist-url 'tcp://127.0.0.1:2345' --dist-backend 'nccl' --multiprocessing-distributed "
    "--world-size 1 --rank 0 IMAGENET": {"batch": 256, "strategy.name": "ddp"},
    "python main.py -a resnet50 --dist-url 'tcp://10.0.0.1:2345' --dist-backend 'nccl' --multiprocessing-distributed "
    "--world-size 2 --rank 1 IMAGENET": {"batch": 512},
    "python main.py -a resnet18 --dummy": {"data.name": "synthetic", "data.size": 224},
    # The tutorial of non-distributed, DataParallel, DistributedDataParallel and Apex
    "python imagnet_nd.py -a resnet50 /data/imagenet/": {
        "strategy.name": "ddp",
        "batch": 256,
        "data.path": "/data/imagenet",
    },
    "python imagenet_ddp.py -a resnet50 --dist-url 'tcp://MASTER_IP:MASTER_PORT' --dist-backend 'nccl' --world-size 1 "
    "--rank 0 --desired-acc 0.75 /data/imagenet/": {"desired_accuracy": 0.75, "batch": 1024},
    "python imagenet_ddp.py -a resnet50 --dist-url 'tcp://MASTER_IP:MASTER_PORT' --dist-backend 'nccl' --world-size 4 "
    "--rank 3 --desired-acc 0.75 /data/imagenet/": {"batch": 4096},
    "python -m torch.distributed.launch --nproc_per_node=4 imagenet_ddp_apex.py -a resnet50 --b 208 --workers 20 "
    "--opt-level O2 /data/imagenet/": {
        "batch": 832,
        "shards": 4,
        "precision.name": "O2",
        "optim.lr_batch": 256,
        "schedule.warmup": "5ep",
        "data.threads": 20,
    },
    "python -m torch.distributed.launch --nproc_per_node=4 --nnodes=2 --node_rank=1 --master_addr='192.168.100.11' "
    "--master_port=8888 imagenet_ddp_apex.py -a resnet50 --b 208 --workers 20 --opt-level O2 /data/imagenet/": {
        "batch": 1664,
        "shards": 8,
    },
    # Apex's own pages
    "python main_amp.py -a resnet50 --b 224 --workers 4 --opt-level O0 ./": {"precision.name": "O0", "batch": 224},
    "python main_amp.py -a resnet50 --b 224 --workers 4 --opt-level O3 --keep-batchnorm-fp32 True ./": {
        "precision.name": "O2",
        "precision.loss_scale": 1.0,
    },
    "python main_amp.py -a resnet50 --b 224 --workers 4 --opt-level O1 --loss-scale 128.0 ./": {
        "precision.name": "O1",
        "precision.loss_scale": 128.0,
    },
    "python -m torch.distributed.launch --nproc_per_node=2 main_amp.py -a resnet50 --b 224 --workers 4 "
    "--opt-level O1 ./": {
        "batch": 448,
        "shards": 2,
    },
    "python main_amp.py -a resnet50 --b 224 --workers 4 --deterministic --opt-level O2 ./": {
        "strategy.deterministic": True
    },
    "python -m torch.distributed.launch --nproc_per_node=2 main_fp16_optimizer.py -a resnet50 --fp16 --b 256 "
    "--static-loss-scale 128.0 --workers 4 ./": {"precision.name": "O2", "precision.loss_scale": 128.0, "batch": 512},
    # Horovod's
    "horovodrun -np 4 -H localhost:4 python pytorch_imagenet_resnet50.py --train-dir T --val-dir V --fp16-allreduce": {
        "batch": 128,
        "optim.lr": 0.05,
        "strategy.compress": "fp16",
        "schedule.warmup_from": 0.25,
        "data.val": "V",
    },
    "horovodrun -np 16 -H server1:4,server2:4,server3:4,server4:4 python pytorch_imagenet_resnet50.py --train-dir T "
    "--val-dir V --batches-per-allreduce 2": {"batch": 1024, "shards": 32},
    # PaddleClas's
    "python3 tools/train.py -c ResNet50_vd.yaml -o Global.device=cpu": {"batch": 64},
    "python3 -m paddle.distributed.launch --gpus '0,1,2,3' tools/train.py -c ./ResNet50_vd.yaml": {
        "batch": 256,
        "shards": 4,
    },
    "python3 -m paddle.distributed.launch --ips=192.168.0.1,192.168.0.2 --gpus=0,1,2,3 --log_dir=./log tools/train.py "
    "-c ResNet50_vd.yaml -o Global.epochs=90 -o Optimizer.lr.learning_rate=0.2": {
        "batch": 512,
        "length": "90ep",
        "optim.lr": 0.2,
    },
    "fleetrun --selected_gpu 0,1 tools/train.py -c ResNet50_vd.yaml -o Arch.pretrained=True": None,
    "srun -N2 --gres gpu:1 python distributed_slurm_main.py --dist-file dist_file": {"batch": 512},
}

LAUNCHED = {
    "../../tools/launch.py -n 2 -H hosts python train_cifar10.py --network resnet --num-layers 110 --batch-size 128 "
    "--gpus 0,1 --kv-store dist_device_sync": "-n 4 -s 2 -H hosts --nproc-per-node 2",
    "python main.py -a resnet50 --dist-url 'tcp://10.0.0.1:2345' --dist-backend 'nccl' --multiprocessing-distributed "
    "--world-size 2 --rank 1 IMAGENET": "--node-rank 1 --num-nodes 2 --rendezvous 10.0.0.1:2345",
    "python -m torch.distributed.launch --nproc_per_node=4 --nnodes=2 --node_rank=1 --master_addr='192.168.100.11' "
    "--master_port=8888 imagenet_ddp_apex.py -a resnet50 --b 208 --workers 20 --opt-level O2 /data/imagenet/": (
        "--node-rank 1 --num-nodes 2 --rendezvous 192.168.100.11:8888 --nproc-per-node 4"
    ),
    "horovodrun -np 16 -H server1:4,server2:4,server3:4,server4:4 python pytorch_imagenet_resnet50.py --train-dir T "
    "--val-dir V --batches-per-allreduce 2": "-n 16 -H server1,server2,server3,server4 --nproc-per-node 4",
    "python3 -m paddle.distributed.launch --gpus '0,1,2,3' tools/train.py -c ./ResNet50_vd.yaml": (
        "-n 4 --devices 0,1,2,3 --run ./output"
    ),
    "CUDA_VISIBLE_DEVICES=0,1 torchrun --nproc-per-node 2 main.py IMAGENET": "-n 2 --devices 0,1",
    "srun -N2 --gres gpu:1 python distributed_slurm_main.py --dist-file dist_file": "-n 2 --launcher slurm",
    "python main.py --gpu 1 IMAGENET": "-n 1 --devices 1",
}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("ResNet50_vd.yaml").write_text(CONF)


@pytest.mark.parametrize("command", TUTORIALS)
def test_every_command_of_the_tutorials_becomes_a_recipe(command: str):
    if TUTORIALS[command] is None:  # PaddleClas would make a new key of it, and here it is asked for
        with pytest.raises(UsageError, match=r"-o \+Arch.pretrained="):
            imported(*shlex.split(command))
        command = command.replace("-o Arch", "-o +Arch")
    recipe, _, _ = imported(*shlex.split(command))
    for path, value in (TUTORIALS.get(command) or {"batch": 128, "model.pretrained": True}).items():
        held = plain(recipe)
        for step in path.split("."):
            held = held[step]
        assert held == value, path


@pytest.mark.parametrize("command", LAUNCHED)
def test_how_it_was_spread(command: str):
    _, draft, _ = imported(*shlex.split(command))
    assert shlex.join(draft.launch) == LAUNCHED[command]


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (
            "python train_mnist.py --network mlp",
            "train_mnist.py: only train_cifar10.py and train_imagenet.py are known",
        ),
        ("python fine-tune.py --pretrained-model imagenet11k-resnet-152 --gpus 0,1", "fine-tune.py: only"),
        (
            "python train_imagenet.py --network inception-bn --data-train t.rec",
            "--network: inception-bn: no such net here",
        ),
        ("python main.py -a squeezenet1_0 IMAGENET", "--arch: squeezenet1_0: no model called"),
        ("python main.py -a resnet18 -e IMAGENET", "--evaluate: this validates and trains nothing: shoal eval"),
    ],
)
def test_what_cannot_be_trained_here(command: str, told: str):
    findings = found(*shlex.split(command))
    assert not findings.wrong
    assert any(told in str(one) for one in findings.lacking), findings


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("python main.py --gpu 0 --multiprocessing-distributed I", "--gpu: contradicts --multiprocessing-distributed"),
        (
            "python main.py --multiprocessing-distributed --world-size 2 --rank 2 I",
            "--rank: 2 contradicts --world-size 2",
        ),
        ("torchrun --nproc-per-node 2 main.py --multiprocessing-distributed I", "contradicts torch's launcher"),
        ("python main.py --arhc resnet18 I", "--arhc: the ImageNet example has no such option; did you mean '--arch'?"),
        ("python main.py --lr fast I", "--lr: expected a number, got 'fast'"),
        ("python main_amp.py --opt-level O4 I", "--opt-level: expected O0, O1, O2, O3; got O4"),
        ("python main_amp.py --opt-level O1 --keep-batchnorm-fp32 True I", "contradicts --opt-level O1"),
        ("python main_amp.py --opt-level O0 --loss-scale 128 I", "128 contradicts --opt-level O0"),
        ("python main_amp.py --opt-level O1 --sync_bn --deterministic I", "contradicts --sync_bn"),
        ("python train_cifar10.py --kv-store dist_sync", "--kv-store: dist_sync needs launch.py -n N in front"),
        ("python train_cifar10.py --kv-store dist_foo", "--kv-store: no type dist_foo"),
        (
            "launch.py -n 2 --launcher local python train_cifar10.py --kv-store local",
            "local contradicts launch.py -n 2",
        ),
        ("python train_cifar10.py --num-layers 9", "--num-layers: 9 is no depth"),
        ("python train_cifar10.py --load-epoch 3", "--load-epoch: contradicts itself without --model-prefix"),
        ("python train_cifar10.py --gc-type 2bit", "2bit contradicts --kv-store device"),
        ("python train_cifar10.py --benchmark 1 --data-train T.rec", "contradict --data-train T.rec"),
        ("python train_imagenet.py", "--data-train: missing"),
    ],
)
def test_flags_that_contradict_are_named(command: str, told: str):
    wrong = found(*shlex.split(command)).wrong
    assert [one for one in wrong if told in str(one) and one.where == "command line"], wrong


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("python main.py --lr 0.1 --lr 0.2 I", "--lr: contradicts itself: 0.1 and 0.2"),
        ("python main.py --lr", "expected one argument"),
        (
            "python -m torch.distributed.launch --nproc_per_node=NUM main.py I",
            "--nproc_per_node NUM: expected a whole number",
        ),
        ("torchrun --nnodes 2 --node_rank 2 main.py I", "--node_rank 2 contradicts --nnodes 2"),
        ("launch.py -n 2 python train_cifar10.py", "--launcher ssh (its default) without -H"),
        ("launch.py -n 2 --launcher local -H h python train_cifar10.py", "--launcher local contradicts -H h"),
        ("launch.py -n 2 --launcher cloud python train_cifar10.py", "--launcher cloud: expected ssh, local"),
        ("horovodrun python x.py --base-lr 1", "-np N is missing"),
        ("horovodrun -np 8 -H a:2,b:2 python x.py --base-lr 1", "-np 8 contradicts -H a:2,b:2"),
        (
            "python -m paddle.distributed.launch --gpus 0,1 --nproc_per_node 4 tools/train.py -c c.yaml",
            "contradicts --nproc_per_node 4",
        ),
        (
            "python -m paddle.distributed.launch --ips a,b --nnodes 3 tools/train.py -c c.yaml",
            "--ips a,b contradicts --nnodes 3",
        ),
        ("python tools/train.py -c none.yaml", "none.yaml: cannot be read"),
        ("python -m timm.train", "no module that starts a training known here"),
        ("python mine.py --depth 3", "mine.py: neither its name nor its options"),
        ("torchrun --nproc-per-node 2", "no script in this command"),
        ("model.params", "shoal import weights model.params"),
        ("nowhere.yaml", "nowhere.yaml: no such file"),
    ],
)
def test_commands_that_cannot_be_read(command: str, told: str):
    with pytest.raises(UsageError) as error:
        found(*shlex.split(command))
    assert told in str(error.value)


def test_a_shell_script_with_its_variables_and_lines(tmp_path: Path):
    Path("train.sh").write_text(
        'export CUDA_VISIBLE_DEVICES=0,1\nip_list="10.0.0.1,10.0.0.2"  # two hosts\ncd PaddleClas\n'
        "python3 -m paddle.distributed.launch \\\n  --ips=${ip_list} --gpus=0,1 \\\n  tools/train.py \\\n"
        "  -c ResNet50_vd.yaml -o Global.epochs=9\n"
    )
    recipe, draft, _ = imported("train.sh")
    assert (recipe.batch, str(recipe.length)) == (256, "9ep")
    assert draft.launch[:4] == ["-n", "4", "--ips", "10.0.0.1,10.0.0.2"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("python main.py I\npython main.py J\n", r"2 commands \(lines 1, 2\)"),
        ("echo hello\n", "no command of python"),
        ("python main.py $DATA\n", r"x.sh:1: \$DATA: not set in this script"),
        ("python main.py 'I\n", "x.sh:1: not to be read as words"),
    ],
)
def test_scripts_that_say_too_little_or_too_much(text: str, told: str):
    Path("x.sh").write_text(text)
    with pytest.raises(UsageError, match=told):
        found("x.sh")


def test_a_flag_of_a_script_is_told_with_its_line():
    Path("x.sh").write_text("python main.py \\\n  -a resnet18 \\\n  --lr fast \\\n  IMAGENET\n")
    (one,) = found("x.sh").wrong
    assert one.where == "x.sh:3"
