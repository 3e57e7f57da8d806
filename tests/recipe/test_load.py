"""Loading a recipe: overrides, short forms, and every fault at once in plain words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shoal.base.duration import Duration
from shoal.base.errors import UsageError
from shoal.recipe.find import FILES, built_in, find, opening
from shoal.recipe.load import RecipeError, dump, flat, load, parse
from shoal.recipe.part import names

SOURCES = ", ".join(names("sources"))

RECIPE = """\
# A title.
data: digits
model: digits-cnn
optim: {name: sgd, lr: 0.1,
        momentum: 0.8, nesterov: true}
batch: 64
shards: 4
length: 10ep
"""


def loaded(*overrides: str, text: str = RECIPE) -> Any:
    return parse(text, "my.yaml", overrides)


def faults(*overrides: str, text: str = RECIPE) -> list[str]:
    with pytest.raises(RecipeError) as error:
        parse(text, "my.yaml", overrides)
    return str(error.value).splitlines()


@pytest.mark.parametrize("name", built_in())
def test_a_dumped_recipe_is_the_same_recipe(name: str):
    recipe = load(name).recipe
    assert parse(dump(recipe), "dump").recipe == recipe
    assert dump(parse(dump(recipe), "dump").recipe) == dump(recipe)


@pytest.mark.parametrize("name", built_in())
def test_a_built_in_recipe_opens_with_what_it_is_and_its_command(name: str):
    page = opening(FILES / f"{name}.yaml")
    assert len(page.splitlines()) >= 3
    assert f"shoal train {name}" in page


def test_durations_and_lists_survive_a_dump():
    recipe = loaded("schedule={name: multistep, at: [3ep, 0.00001Mim]}", "ema.half_life=0.000001ep").recipe
    assert recipe.schedule.at == (Duration.parse("3ep"), Duration.parse("10im"))
    assert parse(dump(recipe), "dump").recipe == recipe


def test_flat_compares_key_by_key():
    old, new = flat(loaded().recipe), flat(loaded("optim.lr=0.2", "ema.half_life=2ep").recipe)
    assert old["optim.lr"] == 0.1
    assert old["data.augment.pad"] == 0
    assert old["length"] == "10ep"
    changed = {key for key in old.keys() | new.keys() if old.get(key) != new.get(key)}
    assert changed == {"optim.lr", "ema.half_life"}


# Overrides


def test_overrides_change_keys_and_fill_short_forms():
    recipe = loaded("model.drop=0.1", "data.augment.pad=2", "optim.lr=1e-3", "task.smoothing=0.1").recipe
    assert (recipe.model.name, recipe.model.drop) == ("digits-cnn", 0.1)
    assert recipe.data.augment.pad == 2
    assert recipe.optim.lr == 0.001
    assert (recipe.task.name, recipe.task.smoothing) == ("classify", 0.1)


def test_the_last_of_equal_overrides_counts():
    assert loaded("optim.lr=0.3", "optim.lr=0.2").recipe.optim.lr == 0.2


@pytest.mark.parametrize("form", ["optim=adamw", "optim.name=adamw"])
def test_a_new_part_drops_the_old_ones_keys_and_says_so(form: str):
    found = loaded(form, "optim.lr=0.01")
    assert (found.recipe.optim.name, found.recipe.optim.lr) == ("adamw", 0.01)
    assert found.notes == (
        "optim.name=adamw: the options of sgd were dropped (optim.lr, optim.momentum, optim.nesterov)",
    )


def test_the_order_of_a_name_and_its_options_is_free():
    assert loaded("optim.lr=0.01", "optim=adamw").recipe == loaded("optim=adamw", "optim.lr=0.01").recipe


def test_a_part_may_be_named_with_its_options():
    found = loaded("strategy=dp:devices=3,kvstore=local", "optim=adamw:lr=0.2,beta1=0.8", "optim.beta1=0.7").recipe
    assert (found.strategy.name, found.strategy.devices, found.strategy.kvstore) == ("dp", 3, "local")
    assert (found.optim.name, found.optim.lr, found.optim.beta1) == ("adamw", 0.2, 0.7)
    assert loaded("optim=sgd:nesterov=false").recipe.optim.momentum == loaded().recipe.optim.momentum


def test_the_same_part_again_drops_nothing():
    found = loaded("optim=sgd")
    assert found.recipe == loaded().recipe
    assert found.notes == ()


def test_another_model_drops_the_old_ones_options():
    found = loaded("model=cifar-resnet8", text=RECIPE.replace("digits-cnn", "{name: digits-cnn, drop: 0.1}"))
    assert (found.recipe.model.name, found.recipe.model.drop) == ("cifar-resnet8", 0.0)
    assert found.notes == ("model.name=cifar-resnet8: the options of digits-cnn were dropped (model.drop)",)


def test_options_of_an_unnamed_default_part_are_dropped_too():
    found = loaded("precision=bf16", text=RECIPE + "precision: {nonfinite: skip}\n")
    assert found.recipe.precision.nonfinite == "stop"
    assert found.notes == ("precision.name=bf16: the options of fp32 were dropped (precision.nonfinite)",)


def test_an_override_of_one_alias_leaves_the_other():
    text = RECIPE.replace("model: digits-cnn", "model: {name: resnet18, options: &x {a: 1}}")
    text = text.replace("name: sgd,", "name: timm, opt: lamb, options: *x,").replace(
        "momentum: 0.8, nesterov: true", ""
    )
    recipe = loaded("model.options.a=2", text=text).recipe
    assert (recipe.model.options, recipe.optim.options) == ({"a": 2}, {"a": 1})


def test_a_dropped_option_is_not_missed_at_its_old_line():
    assert faults("optim=adamw") == ["command line: optim.lr: missing; a number >= 0 is needed"]


# Faults


def test_all_faults_come_at_once_with_their_places():
    text = RECIPE.replace("batch: 64", "batch: many\nnorms: shard").replace("momentum: 0.8", "momentum: 2")
    assert faults("optim.lr=fast", "strategy=dpd", text=text) == [
        "my.yaml:7: norms: unknown key; did you mean 'norm'? (known: accumulate, batch, batch_per_worker, data, "
        "desired_accuracy, drop_last, ema, eval_every, keep_last, length, log_every, model, monitor, norm, optim, "
        "precision, save_every, schedule, seed, shards, strategy, task, trace)",
        "command line: optim.lr: expected a number >= 0, got 'fast'",
        "my.yaml:5: optim.momentum: expected a number >= 0 and < 1, got 2",
        "my.yaml:6: batch: expected a whole number >= 1 or null, got 'many'",
        "command line: strategy.name: no strategy called 'dpd'; did you mean 'dp'? "
        "(known: ddp, dp, fsdp, local_sgd, pipeline, ps, single)",
    ]


def test_a_part_below_a_group_may_be_named_and_changed_on_one_command_line():
    words = ["data=synthetic", "data.augment.policy=randaugment", "data.augment.policy.magnitude=5"]
    policy = loaded(*words).recipe.data.augment.policy
    assert (policy.name, policy.magnitude) == ("randaugment", 5)


def test_missing_keys_say_what_is_needed():
    missing = faults(text="{}")
    assert missing[0] == f"my.yaml: data: missing; a source ({SOURCES}) is needed"
    assert missing[1].startswith("my.yaml: model: missing; a name or a group of keys (name, pretrained, ")
    assert missing[2] == "my.yaml: optim: missing; an optim (adamw, muon, sgd, timm) is needed"
    assert missing[3].startswith("my.yaml: length: missing; a number with a unit: 90ep (epochs)")
    assert faults(text=RECIPE.replace("lr: 0.1,", "")) == ["my.yaml:4: optim.lr: missing; a number >= 0 is needed"]


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("length=90", "length: 90 has no unit; a duration is a number with a unit: 90ep (epochs), 5000st"),
        ("length=90 days", "length: '90 days' is no duration; a duration is a number with a unit"),
        ("length=-3ep", "length: '-3ep' is no duration"),
        ("length=0ep", "length: a training of length 0 trains nothing"),
        ("batch=64.5", "batch: expected a whole number >= 1 or null, got 64.5"),
        ("batch=0", "batch: expected a whole number >= 1 or null, got 0"),
        ("batch=true", "batch: expected a whole number >= 1 or null, got true"),
        ("drop_last=yes", "drop_last: expected true or false, got 'yes'"),
        ("norm=shrd", "norm: expected shard | sync | frozen, got 'shrd'; did you mean 'shard'?"),
        ("shards=atuo", "shards: expected a whole number >= 1 or auto, got 'atuo'; did you mean 'auto'?"),
        ("seed=-1", "seed: expected a whole number >= 0 and < 4294967296, got -1"),
        ("optim.lr=.nan", "optim.lr: expected a number >= 0"),
        ("optim.lr=.inf", "optim.lr: expected a number >= 0, and a finite one, got inf"),
        ("optim.lr=", "optim.lr: expected a number >= 0, got null"),
        ("ema=1", "ema: expected a group of keys (half_life), got 1"),
        ("data=null", f"data: expected a source ({SOURCES}): a name, or a group of keys with a name; got null"),
        ("data.name=digit", f"data.name: no source called 'digit'; did you mean 'digits'? (known: {SOURCES})"),
        ("model=3", "model: expected a name or a group of keys (name, pretrained, "),
        ("model=digits-cn", "model.name: no model called 'digits-cn'; did you mean 'digits-cnn'?"),
        ("schedule={name: multistep, at: 3ep}", "schedule.at: expected a list, each a number with a unit"),
        ("schedule={name: multistep, at: [3ep, 5]}", "schedule.at.1: 5 has no unit"),
        ("batch={~: [true, 1]}", "batch: expected a whole number >= 1 or null, got {null: [true, 1]}"),
        ("length.x=3", "length.x: length is '10ep', not a group of keys"),
        ("optim.beta1=0.9", "optim.beta1: unknown key (known: "),
        ("nonsense", "nonsense: an override is key=value, as in optim.lr=0.1"),
        ("a..b=3", "a..b=3: an override is key=value, as in optim.lr=0.1"),
        ("shards=128", "shards: 128 shards cannot be cut from a batch of 64 images"),
        ("batch=null", "batch: state either batch (images per step of the whole job) or batch_per_worker"),
        ("optim.momentum=0", "optim.nesterov: needs a momentum above 0"),
    ],
)
def test_a_fault_in_plain_words(override: str, told: str):
    found = faults(override)
    assert len(found) == 1
    place, _, text = found[0].partition(": ")
    assert place.startswith(("command line", "my.yaml"))
    assert text.startswith(told)


def test_faults_are_usage_errors():
    assert issubclass(RecipeError, UsageError)
    assert RecipeError.exit_code == 2


# Where recipes are found


def test_an_unknown_name_is_answered_with_the_known_ones():
    with pytest.raises(UsageError, match=r"no recipe called 'digit'; did you mean 'digits'\? \(known: .*digits"):
        find("digit")


def test_a_file_beside_is_pointed_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "mine.yaml").write_text(RECIPE)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"or did you mean the file \./mine\.yaml\?"):
        find("mine")
    assert load("mine.yaml").name == "mine"


def test_files_that_are_not_there_or_not_readable(tmp_path: Path):
    with pytest.raises(UsageError, match="no such file"):
        load(str(tmp_path / "none.yaml"))
    (tmp_path / "folder.yaml").mkdir()
    with pytest.raises(UsageError, match=r"no recipe\.yaml in it"):
        load(str(tmp_path / "folder.yaml"))
    (tmp_path / "latin.yaml").write_bytes(b"data: \xe9\n")
    with pytest.raises(UsageError, match="not UTF-8 text"):
        load(str(tmp_path / "latin.yaml"))


def test_a_run_folder_stands_for_its_recipe(tmp_path: Path):
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    assert load(str(tmp_path)).recipe == loaded().recipe


def test_the_last_word_on_the_batch_counts():
    loaded = parse(RECIPE, "r.yaml", ["batch_per_worker=8"])
    assert (loaded.recipe.batch, loaded.recipe.batch_per_worker) == (None, 8)
    assert loaded.notes == ("batch_per_worker=8: the recipe's batch was dropped",)


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["task=distill"], "task.teacher: missing; a group of keys (model, pretrained, options, run) is needed"),
        (["task.temperature=4"], "task.temperature: unknown key"),
        (["task.teacher.run=runs/x"], "task.teacher: unknown key"),
        (["task=distill", "task.teacher.run=x", "task.teacher.model=resnet50"], "task.teacher.run: state either run"),
        (["task=distill", "task.teacher.model=resnet5x"], "task.teacher.model: no model called 'resnet5x'; did you"),
        (
            ["task=distill", "task.teacher={model: resnet50, pretrained: false}"],
            "task.teacher.pretrained: a teacher wi",
        ),
        (
            ["task=distill", "task.teacher={model: resnet50, pretrained: x.bin}"],
            "task.teacher.pretrained: 'x.bin' is n",
        ),
        (["task=distill", "task.teacher={run: x, pretrained: y.pt}"], "task.teacher.pretrained: is for a teacher by"),
        (
            ["task=distill", "task.teacher.run=x", "task.divergence=symmetric", "task.temperature=3"],
            "task.temperature: is of divergence: kl; the symmetric one has none",
        ),
        (["task=distill", "task.teacher.run=x", "task.distill_weight=0"], "task.distill_weight: expected a number > 0"),
    ],
)
def test_distillation_without_a_teacher_or_against_itself(overrides, told):
    with pytest.raises(RecipeError) as caught:
        load("digits", overrides)
    assert str(caught.value).startswith(f"command line: {told}") and "\n" not in str(caught.value)
