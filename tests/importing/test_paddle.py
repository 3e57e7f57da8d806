"""PaddleClas's YAML: every section becomes its keys, or is told with its line."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from old_jobs import CONF, found, imported

from shoal.base.errors import UsageError
from shoal.importing.findings import Findings
from shoal.importing.paddle.models import called
from shoal.importing.recognise import read
from shoal.models import check_name
from shoal.recipe import yaml12
from shoal.recipe.load import parse, plain


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    path = tmp_path / "ResNet50_vd.yaml"
    path.write_text(CONF)
    return path


def changed(conf: Path, *pairs: tuple[str, str]) -> Path:
    text = conf.read_text()
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new)
    conf.write_text(text)
    return conf


def line(conf: Path, text: str) -> str:
    return f"{conf}:{1 + conf.read_text()[: conf.read_text().index(text)].count(chr(10))}"


def test_all_sections_at_once(conf: Path):
    recipe, draft, findings = imported(conf, cards=4)
    held = plain(recipe)
    assert held["model"]["name"] == "resnet50d"
    assert held["data"] | {"name": "folder", "path": "./images", "threads": 4, "eval_batch": 32} == held["data"]
    assert held["data"]["augment"] | {"size": 192, "mirror": True, "resize": 224} == held["data"]["augment"]
    assert held["optim"] | {"name": "sgd", "lr": 0.1, "momentum": 0.9, "weight_decay": 7e-5} == held["optim"]
    assert held["schedule"] | {"name": "cosine", "warmup": "5ep", "end": 0.0} == held["schedule"]
    assert held["task"] | {"smoothing": 0.1, "mixup": 0.2} == held["task"]
    assert (recipe.batch, recipe.shards, str(recipe.length)) == (256, 4, "120ep")
    assert (str(recipe.eval_every), str(recipe.save_every), str(recipe.log_every)) == ("2ep", "5ep", "10st")
    assert draft.reasons["batch"] == ["batch 64 per card x 4 = batch 256"]
    assert draft.launch == ["--run", "./output", "-n", "4"] and not findings.left


def test_without_the_number_of_cards_the_batch_stays_per_worker(conf: Path):
    recipe, draft, _ = imported(conf)
    assert (recipe.batch, recipe.batch_per_worker, recipe.shards) == (None, 64, "auto")
    assert "--cards N" in draft.reasons["batch_per_worker"][0]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (
            "name: Cosine\n    learning_rate: 0.1\n    warmup_epoch: 5",
            "name: Piecewise\n    learning_rate: 0.3\n    decay_epochs: [30, 60]\n    values: [0.2, 0.02, 0.002]",
            {"schedule.name": "multistep", "schedule.at": ["30ep", "60ep"], "schedule.gamma": 0.1, "optim.lr": 0.2},
        ),
        (
            "warmup_epoch: 5",
            "warmup_epoch: 5\n    warmup_start_lr: 0.01\n    eta_min: 1e-3",
            {"schedule.warmup_from": 0.1, "schedule.end": 0.01},
        ),
        ("warmup_epoch: 5", "warmup_epoch: 200", {"schedule.warmup": "120ep"}),
        ("name: Cosine\n", "name: Linear\n", {"schedule.name": "linear"}),
        (
            "name: Momentum\n  momentum: 0.9",
            "name: AdamW\n  beta2: 0.95\n  one_dim_param_no_weight_decay: True",
            {"optim.name": "adamw", "optim.beta2": 0.95, "optim.decay_norms": False, "optim.weight_decay": 7e-5},
        ),
        (
            "name: Momentum\n  momentum: 0.9",
            "name: RMSProp\n  momentum: 0.9\n  rho: 0.9\n  epsilon: 0.001",
            {
                "optim.name": "timm",
                "optim.opt": "rmsproptf",
                "optim.options": {"alpha": 0.9, "momentum": 0.9, "eps": 0.001},
            },
        ),
        (
            "Arch:\n",
            "AMP: {level: O2, scale_loss: 128.0, use_dynamic_loss_scaling: True}\nArch:\n",
            {"precision.name": "O2", "precision.loss_scale": "dynamic", "precision.init_scale": 128.0},
        ),
        ("Arch:\n", "AMP: {use_amp: False, level: O1}\nArch:\n", {"precision.name": "fp32"}),
        ("Arch:\n", "EMA: {decay: 0.9999}\nArch:\n", {"ema.half_life": "6931st"}),
        (
            "MixupOperator: {alpha: 0.2}",
            "OpSampler: {MixupOperator: {alpha: 0.8, prob: 0.5}, CutmixOperator: {alpha: 1.0, prob: 0.5}}",
            {"task.mixup": 0.8, "task.cutmix": 1.0},
        ),
        ("batch_size: 64, drop_last: False", "batch_size: 64, drop_last: True", {"drop_last": True}),
        (
            "scale: 1.0/255.0, mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225]",
            "scale: 1.0, mean: [128.0, 128.0, 128.0], std: [64., 64., 64.]",
            {"data.mean": [128.0, 128.0, 128.0], "data.std": [64.0, 64.0, 64.0]},
        ),
        ("  epochs: 120", "  epochs: 120\n  update_freq: 4", {"batch": 1024, "shards": 16}),
        (
            "class_num: 1000",
            "class_num: 1000\n  drop_path_rate: 0.2\n  pretrained: True",
            {"model.drop_path": 0.2, "model.pretrained": True},
        ),
        (
            "        - RandFlipImage: {flip_code: 1}",
            "        - RandFlipImage: {flip_code: 1}\n        - AutoAugment:",
            {"data.augment.policy": {"name": "autoaugment", "table": "imagenet", "fill": 128, "filter": "nearest"}},
        ),
        (
            "        - RandFlipImage: {flip_code: 1}",
            "        - RandFlipImage: {flip_code: 1}\n        - RandAugment: {num_layers: 3, magnitude: 5}",
            {"data.augment.policy.count": 3, "data.augment.policy.magnitude": 5, "data.augment.policy.bins": 11},
        ),
        (
            "        - RandFlipImage: {flip_code: 1}",
            "        - RandFlipImage: {flip_code: 1}\n"
            "        - TimmAutoAugment: {config_str: rand-m9-mstd0.5-inc1, interpolation: bicubic, img_size: 224}",
            {
                "data.augment.policy.name": "randaugment",
                "data.augment.policy.magnitude": 9,
                "data.augment.policy.bins": 11,
            },
        ),
        (
            "        - RandFlipImage: {flip_code: 1}",
            "        - RandFlipImage: {flip_code: 1}\n"
            "        - RandomErasing: {EPSILON: 0.25, sl: 0.02, sh: 1.0/3.0, r1: 0.3, mode: pixel}",
            {
                "data.augment.erase": {
                    "probability": 0.25,
                    "area": [0.02, 0.3333],
                    "ratio": [0.3, 3.3333],
                    "paint": "noise",
                }
            },
        ),
        (
            "        - RandFlipImage: {flip_code: 1}",
            "        - RandFlipImage: {flip_code: 1}\n        - Cutout: {n_holes: 2, length: 56}",
            {"data.augment.cutout": {"side": 56, "count": 2}},
        ),
        (
            "        - RandFlipImage: {flip_code: 1}",
            "        - RandFlipImage: {flip_code: 1}\n        - ColorJitter: {brightness: 0.4, hue: 0.1}",
            {"data.augment.colour.brightness": 0.4, "data.augment.colour.hls": [18.0, 0.0, 0.0]},
        ),
        ("ResNet50_vd", "SE_ResNet50_vd", {"model.options": {"block_args": {"attn_layer": "se"}}}),
    ],
)
def test_what_a_setting_becomes(conf: Path, old: str, new: str, expected: dict):
    recipe, _, _ = imported(changed(conf, (old, new)), cards=4)
    for path, value in expected.items():
        held = plain(recipe)
        for step in path.split("."):
            held = held[step]
        assert held == value, path


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (
            "        - RandFlipImage: {flip_code: 1}",
            "        - RandFlipImage: {flip_code: 1}\n        - GridMask:",
            "GridMask: no such augmentation",
        ),
        ("momentum: 0.9", "momentum: 0.9\n  no_weight_decay_name: norm", "no_weight_decay_name norm: decay by name"),
        (
            "  pretrained_model: null",
            "  pretrained_model: ./a",
            "pretrained_model ./a: Paddle's files hold pickles",
        ),
        ("Metric:", "Slim: {quant: {name: pact}}\nMetric:", "Slim: models are neither quantised nor pruned"),
        (
            "class_num: 1000",
            "class_num: 1000\n  layer_scale: 1e-6",
            "Arch.layer_scale 1e-06: an argument of Paddle's net",
        ),
    ],
)
def test_what_is_left_out_is_told_with_its_line(conf: Path, old: str, new: str, told: str):
    findings = found(changed(conf, (old, new)))
    assert not findings.wrong and not findings.lacking
    (one,) = findings.left
    assert told in f"{one.what}: {one.why}"
    assert one.where == line(conf, one.what.split()[0].rpartition(".")[2] + ":")


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("ResNet50_vd", "ShuffleNetV2_x1_0", "Arch.name: ShuffleNetV2_x1_0: no model called 'shufflenetv2_x1_0'"),
        ("name: ResNet50_vd", "name: DistillationModel", "Arch.name: DistillationModel"),
        (
            "ImageNetDataset\n      image_root: ./images/\n      cls_label_path: ./images/train",
            "MultiLabelDataset\n      image_root: ./images/\n      cls_label_path: ./images/train",
            "no set of images with one label",
        ),
        ("CELoss: {weight: 1.0, epsilon: 0.1}", "MultiLabelLoss: {weight: 1.0}", "cross-entropy is what there is"),
        ("name: Momentum", "name: Lars", "no optimizer Lars"),
        ("name: Cosine", "name: Cyclic", "no schedule Cyclic"),
        (
            "name: DistributedBatchSampler, batch_size: 64",
            "name: PKSampler, batch_size: 64",
            "PKSampler draws images by classes",
        ),
        (
            "name: Cosine\n    learning_rate: 0.1\n    warmup_epoch: 5",
            "name: Piecewise\n    decay_epochs: [30, 60]\n    values: [0.2, 0.1, 0.002]",
            "fall by several factors",
        ),
    ],
)
def test_what_cannot_be_trained_is_named(conf: Path, old: str, new: str, told: str):
    findings = found(changed(conf, (old, new)))
    assert not findings.wrong
    assert any(told in str(one) and one.where.startswith(f"{conf}:") for one in findings.lacking), findings


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("Metric:", "Metrik: {a: 1}\nMetric:", "Metrik: unknown section"),
        ("  epochs: 120", "  epochs: 120\n  epoch: 3", "Global.epoch: unknown key"),
        ("  momentum: 0.9", "  momentum: 0.9\n  nesterov: True", "Optimizer.nesterov: unknown key"),
        ("learning_rate: 0.1", "learning_rate: fast", "Optimizer.lr.learning_rate: expected a number, got 'fast'"),
        ("  epochs: 120", "  epochs: 1.5", "Global.epochs: expected a whole number >= 1, got 1.5"),
        (
            "  momentum: 0.9",
            "  momentum: 0.9\n  weight_decay: 0.1",
            "Optimizer.regularizer: contradicts Optimizer.weight_decay",
        ),
        ("Arch:\n", "AMP: {level: O4}\nArch:\n", "AMP.level: expected O1 or O2, got O4"),
    ],
)
def test_what_cannot_be_meant_is_told_with_its_line(conf: Path, old: str, new: str, told: str):
    findings = found(changed(conf, (old, new)))
    (one,) = findings.wrong
    assert told in str(one)
    assert one.where == line(conf, f"{one.what.rpartition('.')[2]}:")


def test_an_override_is_the_command_lines(conf: Path):
    recipe, _, _ = imported(conf, "-o", "Global.epochs=3", "-o", "Optimizer.lr.warmup_epoch=1")
    assert str(recipe.length) == "3ep"
    (one,) = found(conf, "-o", "Global.epochs=x").wrong
    assert one.where == "command line"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a: [1\n", "not valid YAML"),
        ("a: 1\nb: 2\n", "no YAML of PaddleClas"),
        ("- a\n", "mapping of keys"),
        ("", "no YAML of"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, text: str, told: str):
    (tmp_path / "x.yaml").write_text(text)
    with pytest.raises(UsageError, match=told):
        found(tmp_path / "x.yaml")


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("ResNet50", "resnet50"),
        ("ResNet200_vd", "resnet200d"),
        ("PPHGNet_base", "hgnet_base"),
        ("PPLCNet_x0_35", "lcnet_035"),
        ("PPLCNetV2_base", "lcnetv2_base"),
        ("MobileNetV3_large_x1_0", "mobilenetv3_large_100"),
        ("RegNetX_4GF", "regnetx_040"),
        ("RegNetX_400MF", "regnetx_004"),
        ("SwinTransformer_tiny_patch4_window7_224", "swin_tiny_patch4_window7_224"),
        ("HRNet_W18_C", "hrnet_w18"),
        ("Res2Net50_vd_26w_4s", "res2net50d"),
        ("ReXNet_1_0", "rexnet_100"),
        ("VGG16", "vgg16"),
        ("GhostNet_x1_3", "ghostnet_130"),
        ("EfficientNetB0", "efficientnet_b0"),
        ("CaiT_S24_224", "cait_s24_224"),
        ("ViT_base_patch16_384", "vit_base_patch16_384"),
        ("alt_gvt_base", "twins_svt_base"),
        ("RepVGG_B1g4", "repvgg_b1g4"),
        ("ResNeXt101_32x48d_wsl", "ig_resnext101_32x48d"),
        ("LeViT128S", "levit_128s"),
        ("DPN68", "dpn68"),
    ],
)
def test_names_of_nets(theirs: str, ours: str):
    assert called(theirs)[0] == ours
    assert check_name(ours) is None


def paths(value: object, at: tuple = ()) -> list[tuple]:
    """Every place below a document."""
    held = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for key, below in held for place in ((*at, key), *paths(below, (*at, key)))]


ODD = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 10**6)
    | st.floats()
    | st.sampled_from(["", "x", "Cosine", "1/0", "None"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["name", "alpha", "x"]), inner, max_size=3)
    ),
    max_leaves=4,
)


@settings(max_examples=150)
@given(st.data())
def test_whatever_stands_in_a_key_is_taken_or_told(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject):
    held = yaml12.read(CONF, "conf")[0]
    for _ in range(data.draw(st.integers(1, 3))):
        *groups, last = data.draw(st.sampled_from(paths(held)))
        at = held
        for step in groups:
            at = at[step]
        at[last] = data.draw(ODD)
    file = tmp_path_factory.getbasetemp() / "odd.yaml"
    file.write_text(yaml12.write(held))
    try:
        findings = Findings()
        draft = read([str(file)], None, 2, findings)
        if not findings.wrong and not findings.lacking:
            parse(draft.text([]), "imported")
    except UsageError:
        pass


DISTILLED = """\
Arch:
  name: DistillationModel
  pretrained_list:
  freeze_params_list: [True, False]
  infer_model_name: Student
  models:
    - Teacher: {name: ResNet50_vd, class_num: 1000, pretrained: True, use_ssld: True}
    - Student: {name: PPLCNet_x1_0, class_num: 1000, pretrained: False, dropout_prob: 0.1}
Loss:
  Train:
    - DistillationDMLLoss: {weight: 1.0, model_name_pairs: [[Student, Teacher]]}
"""


@pytest.fixture
def distilled(conf: Path) -> Path:
    """A student and a frozen teacher."""
    before, rest = CONF.split("Arch:\n")
    conf.write_text(before + DISTILLED + "  Eval:" + rest.partition("  Eval:")[2])
    return conf


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        ("DistillationDMLLoss: {weight: 1.0,", {"divergence": "symmetric", "distill_weight": 1.0, "label_weight": 0.0}),
        ("DistillationCELoss: {weight: 1.0,", {"divergence": "kl", "temperature": 1, "label_weight": 0.0}),
        ("DistillationGTCELoss: {weight: 0.5}\n    - DistillationKLDivLoss: {weight: 0.9, temperature: 4,",
         {"divergence": "kl", "temperature": 4, "distill_weight": 0.9, "label_weight": 0.5}),
    ],
)  # fmt: skip
def test_a_frozen_teacher_becomes_a_task(distilled: Path, loss: str, expected: dict):
    changed(distilled, ("DistillationDMLLoss: {weight: 1.0,", loss))
    findings = Findings()
    draft = read([str(distilled)], None, 4, findings)
    assert not findings.wrong and not findings.lacking, findings
    assert draft.keys["model"] == {"name": "lcnet_100", "drop": 0.1}
    assert draft.keys["task"] | {"name": "distill", "teacher": {"model": "resnet50d"}, **expected} == draft.keys["task"]
    parse(draft.text([]), "imported")


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("[True, False]", "[False, False]", "nets that teach each other are not"),
        ("name: ResNet50_vd", "name: Res2Net200_vd_26w_4s", "no model called 'res2net200_vd_26w_4s'"),
        ("DistillationDMLLoss", "DistillationDKDLoss", "DistillationDKDLoss: the divergence of logits"),
        ("DistillationDMLLoss", "DistillationGTCELoss", "0 losses of a teacher"),
    ],
)
def test_other_ways_to_distill_are_named(distilled: Path, old: str, new: str, told: str):
    findings = found(changed(distilled, (old, new)))
    assert not findings.wrong
    assert any(told in str(one) for one in findings.lacking), findings
