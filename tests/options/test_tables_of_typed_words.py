"""What is answered to many words of a command line, to values at their bounds and to resumed configurations: kept
beside this file."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field
from typing import Any

import pytest
import yaml
from conftest import CONF
from hydra.errors import ConfigCompositionException, MissingConfigException
from support.changed_config import changed, heads
from support.known_values import known

from legroom.config.fields import at_least, fraction, key, one_of
from legroom.options import (
    hooks,
    hydra_errors,
    keys,
    known_models,
    menus,
    overrides,
    suggestions,
    validate,
    yaml_files,
)
from legroom.options.hooks import Conflict, Cost, Lever

# --- keys and overrides ----------------------------------------------------------------------------

TYPED = """
model
train.seed
bert_tiny
none
sead
=3
train.seed =3
 =3
+=3
train..seed=3
.train.seed=3
train.s*ed=3
train.seed=[3
optim=[
data.path=[
data.path='a
data.preview=1,2
optim=adamw,sgd
data.path=a,b
data.samples=range(1,3)
hydra=x
hydra={a:1}
hydra/launcher=joblib
hydra/launcher={a:1}
hydra.launcher=joblib
hydra.launcher={n_jobs:2}
hydra.sweeper=optuna
hydra.sweep.dir=${now:%Y}
hydra.sweep.dir=here
hydra.run.dir=${now:%Y}
hydra.sweeper.params.a=1
hydra.verbose=true
hydra.verbose=[a,b]
hydra.verbose=3
hydra.job.name=
hydra.job.name=x
hydra.jib=3
data.path=${oc.env:HOME}
data.path=${ oc.env : HOME}
data.path=${train.seed}
model@here=bert_tiny
model.name=x
model.facts.package=x
model.family=bert
optim.args.rank=3
optim.args=3
optim.args={rank:3}
~train.seed
~optim
~train.sead
~experiment/guide
+experiment/guide=vanilla
+experiment/guide=vanilla,fp16
experiment/guide=vanilla
experiment=vanilla
+experiment=vanilla
+experiment/absent=vanilla
+experiment/guide=3
+experiment/guide=absent
++experiment/guide=vanilla
+optim=sgd
++optim=sgd
+train.seed=3
optim=sgd
optim=sdg
optim=null
optim=
optim=3
optim={a:1}
optim=[sgd]
accumulation=3
accumulation=true
accumulation=x3
accumulation=x
checkpointing=true
precision=16
precision=bf
precision=BF16
model=bert-base-uncased
model=google/gemma
model=bert
model=zzzz
data=csv
train=3
train={seed:3}
train=null
train.seed=3
train.seed=3.0
train.seed=1e3
train.seed=1.5
train.seed=true
train.seed=x
train.seed=null
train.learning_rate=x
train.learning_rate=1
train.learning_rate=true
train.learning_rate=null
train.max_steps=null
eval.enabled=1
eval.enabled=yes
eval.enabled=null
data.path=3
data.path=true
data.path={a:1}
data.path=
data.path=''
data.path=' '
data.path=null
data.train_on=
data.train_on=all
tracker.tags=a
tracker.tags=[a,b]
tracker.tags=[a,null]
tracker.tags=[[a]]
tracker.tags=null
tracker.tags=[a,'']
resume_allow=data
resume_allow=3
device=gpu
device=3
device=null
adapter.targets=all
adapter.targets=[a]
fp16=true
fp16=false
fp16=no
fp16=0
fp16=off
fp16=1
bf16=true
lr=1
learning_rate=1
train.lr=1
optim.lr=1
optim.weight_decay=1
seed=3
warmup_ratio=0.1
warmup_step=3
steps=3
every_steps=3
name=x
samples=3
per_device_train_batch_size=8
per_device_train_batch_sise=8
train.sead=3
train.zzzz=3
recipe.zzzz=3
optim.zzzz=3
zzzz=3
zzzz.seed=3
--fp16=true
TRAIN-SEED=3
dataset_name=imdb
lora_target_modules=q_proj
max_length=64
do_predict=true
+zzzz=3
~zzzz
"""


def test_what_is_said_of_a_word(data_regression):
    words = [word for word in TYPED.splitlines() if word]
    words += ["a" * 250, "train.seed=" + "9" * 300, "data.path=a\tb=[", "data.path=" + "[" * 3000]
    found = {}
    for word in words:
        said = {"alone": heads(overrides.problems([word], [CONF], sweeping=False), 150)}
        if "," in word or "range" in word or "hydra" in word:
            said["with -m"] = heads(overrides.problems([word], [CONF], sweeping=True), 150)
        if any(said.values()):
            found[word[:60]] = said
    found["without menus"] = {
        word: heads(overrides.problems([word], [], sweeping=False))
        for word in ("bert_tiny", "optim=", "optim=sdg", "experiment=vanilla", "train.seed=x")
    }
    data_regression.check(known(found))


def test_which_words_are_put_in_quotes(data_regression):
    words = """
    data.path=Müller.txt
    data.path=a:b
    data.path='Müller.txt'
    data.path="Müller.txt"
    data.path=Mü,ller.txt
    data.path=${Mü}
    data.path=plain
    data.path=it's ü
    data.path=ü\\
    +data.path=Müller.txt
    hydra.run.dir=ü
    hydra.sweep.dir=ü
    hydra.job.name=ü
    train.seed=ü
    tracker.tags=mine
    tracker.tags=a-b.c
    +tracker.tags=mine
    tracker.tags=null
    tracker.tags=[a]
    tracker.tags=a,b
    tracker.tags=
    adapter.modules_to_save=head
    resume_allow=data
    Müller
    """
    typed = [word.strip() for word in words.splitlines() if word.strip()]
    found: dict[str, Any] = dict(zip(typed, overrides.quoted(typed), strict=True))
    params = {"train.seed": "1,2", "zzzz": 3, "optim": "sgd,zzzz", "nested": {"a": 1}, "train.epochs": "range(1,3)"}
    found["in a file"] = heads(overrides.swept_in_a_file(params, [CONF]), 60)
    data_regression.check(known(found))


def test_what_the_schema_says_of_keys(data_regression):
    names = (
        "train train.seed optim optim.args optim.args.rank tracker.tags model.name train.zzzz zzzz device resume a.b"
    )
    found: dict[str, Any] = {
        name: [keys.is_section(name), str(keys.rule_of(name)), keys.mapping_of(name)] for name in names.split()
    }
    asked = {
        "model": ("a/b", "zz", None),
        "recipe": ("zz", "estimate"),
        "train": ("3",),
        "optim.args": ("3",),
        "tracker.tags": ("a", "[a]", "a b", None),
        "eval.enabled": (None, "x", "false"),
        "train.seed": (None, "x", "3", "1,2", "1,x"),
        "hydra.run.dir": ("x", None),
        "data.path": ("a[b", "x"),
        "data.train_on": ("a[b",),
        "train.schedule": ("linear", "zz"),
        "train.max_steps": ("null",),
        "data.tokenizer": ("3",),
        "accumulation": ("x2",),
    }
    found |= {f"with_value {key} {value}": keys.with_value(key, value) for key, each in asked.items() for value in each}
    values = [None, True, 3, 3.5, "x", "3", "${a}", [], [1], [None], [[1]], {}, float("nan"), 10**400]
    for name in ("train.seed", "train.max_steps", "train.learning_rate", "eval.enabled", "data.path", "data.train_on"):
        found[f"fits {name}"] = [keys.fits(keys.schema()[name], value) for value in values]
    for name in ("tracker.tags", "optim.args", "adapter.targets"):
        found[f"fits {name}"] = [keys.fits(keys.schema()[name], value) for value in values]
    data_regression.check(known(found))


def test_names_that_are_near(data_regression):
    some = ["alpha", "alphb", "alphc", "alphd", "beta"]
    found: dict[str, Any] = {name: suggestions.nearest(name, some) for name in ("alpha", "alpa", "bet", "zzz", "lph")}
    found["strict"] = [suggestions.nearest("alpa", some, cutoff) for cutoff in (0.8, 0.95)]
    found["closest"] = {name: suggestions.closest(name, some) for name in ("alpha", "alpa", "alha", "al", "betta")}
    found["empty"] = [
        suggestions.if_empty("a.b", value) for value in ("", " ", "x", 3, None, [], ["x", ""], [" "], ["x"])
    ]
    found["shown"] = [len(suggestions.shown("a" * length)) for length in (199, 200, 201, 300)]
    found["escaped"] = suggestions.shown("a\nb\t\x1b\u200bü")
    found["listed"] = [
        known_models.like(name)[:70]
        for name in ("meta-llama/Llama-2-13b-chat-hf", "meta-llama/Llama-3.2-3B", "bert-base-uncased", "zz/zz")
    ]
    data_regression.check(known(found))


# --- values at their bounds ------------------------------------------------------------------------


@dataclass
class Inner:
    size: int = at_least(2)


@dataclass
class Outer:
    choice: Any = one_of("red", "green", None)
    text: Any = key()
    pattern: Any = key(pattern=r"\d+\.\d+", example="8.6")
    share: Any = fraction()
    count: Any = at_least(1)
    least: Any = key(minimum=0.5)
    plain: Any = key()
    inner: Inner = field(default_factory=Inner)


BOUNDS = {
    "choice": ("red", "gren", None, 3),
    "text": ("", " ", "x", None, ["a", ""]),
    "pattern": ("8.6", "8", "a8.6", "8.6a", ""),
    "share": (-0.1, 0, 0.5, 0.999, 1, 1.1, math.nan, math.inf, -math.inf),
    "count": (0, 1, 2**62, 2**62 + 1, math.inf, None),
    "least": (0.4, 0.5),
    "plain": (math.inf, -math.inf, math.nan, 2**62 + 1, -(2**70), True, 1e300),
}


def test_values_at_the_bounds_of_the_schema(data_regression):
    right = Outer("red", "x", "8.6", 0.5, 1, 1.0, 1)
    right.inner.size = 2
    assert validate.value_problems(right) == []
    found = {}
    for name, values in BOUNDS.items():
        for value in values:
            one = copy.deepcopy(right)
            setattr(one, name, value)
            found[f"{name}={value!r}"] = validate.value_problems(one, "a.")
    right.inner.size, right.count = 1, 0
    found["two"] = validate.value_problems(right)
    data_regression.check(known(found))


def test_what_is_said_of_the_machine_and_of_limits(data_regression, monkeypatch):
    from legroom.machine import host

    found = {}
    for is_built in (False, True):
        for gpus in ((), (host.Gpu("GPU-0", "NVIDIA Own", 2**34, (9, 0)),)):
            monkeypatch.setattr(host, "gpus", lambda gpus=gpus: gpus)
            monkeypatch.setattr(host, "torch_has_cuda", lambda is_built=is_built: is_built)
            for device in ("cuda", "cpu"):
                for recipe in ("trainer", "estimate"):
                    line = f"device={device} recipe.name={recipe}"
                    said = [each for each in validate.validate(changed(line)[0]) if "device=" in each]
                    found[f"{line}, built {is_built}, {len(gpus)} GPUs"] = heads(said, 60)
    for limits in ("launch.timeout_seconds=0", "launch.memory_limit_gib=0", "launch.timeout_seconds=0.1"):
        found[limits] = heads(validate.validate(changed(limits)[0]), 60)
    data_regression.check(known(found))


# --- hooks and menus -------------------------------------------------------------------------------


def test_conflicts_and_levers(data_regression):
    conflicts = {
        "values": Conflict("optim=sgd,lion", "precision=fp16", " here"),
        "a key": Conflict("eval.every_steps", "eval.enabled", "", "Do."),
        "true": Conflict("eval.enabled=true", "model.attention=sdpa"),
    }
    lines = "optim.name=sgd|optim.name=sgd precision.name=fp16|optim.name=lion precision.name=fp16|precision.name=fp16"
    lines += "|eval.every_steps=3|eval.every_steps=3 eval.enabled=false|eval.enabled=true model.attention=sdpa|"
    found: dict[str, Any] = {}
    for line in lines.split("|"):
        for name, conflict in conflicts.items():
            for more in ("", "precision=fp16", "optim=adamw", "optim=sgd", "eval.enabled=false"):
                if said := conflict.line(changed(line)[0], more):
                    found[f"{name}: {line} + {more}"] = said
    found["levers"] = {cost.name: [cost.value, Lever("a=b", cost).changes_mathematics] for cost in Cost}
    found["no cost"] = Lever("a=b").changes_mathematics
    found["dimensions"] = [f"{name} {dimension.order}" for name, dimension in hooks.dimensions().items()]
    for phase in (None, "forward", "step"):
        cfg, _ = changed("batch.per_device=4", "model=bert_tiny")
        found[f"levers of {phase}"] = [lever.overrides for lever in hooks.memory_levers(cfg, phase)]
    cfg, _ = changed("optim.name=lomo")
    found["possible"] = {
        choice: hooks.is_possible(cfg, choice) for choice in ("optim=sgd", "checkpointing=full", "x=y")
    }
    data_regression.check(known(found))


def test_the_keys_that_an_option_uses(data_regression, tmp_path):
    (tmp_path / "optim").mkdir()
    options = {
        "base": "name: base\nbeta1: 1\nbeta2: 2\n",
        "first": "defaults:\n- _self_\n- base\nname: first\nbeta1: 9\n",
        "last": "defaults:\n- base\n- /model: x\nname: last\nbeta1: 9\n",
        "empty": "",
    }
    for name, text in options.items():
        (tmp_path / f"optim/{name}.yaml").write_text(text)
    found: dict[str, Any] = {name: menus.option_values("optim", name, [tmp_path]) for name in (*options, "absent")}
    (tmp_path / "other/optim").mkdir(parents=True)
    (tmp_path / "other/optim/base.yaml").write_text("name: other\n")
    found["the first folder"] = menus.option_values("optim", "base", [tmp_path / "other", tmp_path])
    choices = dict.fromkeys(keys.config.GROUPS, "none") | {"optim": "sgd", "adapter": "none"}
    values = {group: {} for group in keys.config.GROUPS} | {
        "optim": {"beta1": 0.5, "momentum": 0.5, "zzzz": 1, "facts": {}, "epsilon": "???"},
        "adapter": {"rank": 3},
    }
    found["unused"] = menus.unused_keys(values, choices, [CONF])
    data_regression.check(known(found))


@pytest.mark.parametrize("more, is_refused", [(0, False), (1, True)])
def test_where_aliases_stand_for_too_many_values(tmp_path, more, is_refused):
    """100,000 values: the mapping, its three keys, the lists of 99, of 1 + 1008 * 99 and of 1 + 103 values."""
    lists = [["x"] * 98, ["*a"] * 1008, ["x"] * (103 + more)]
    first, second, third = (f"[{', '.join(each)}]" for each in lists)
    (tmp_path / "some.yaml").write_text(f"a: &a {first}\nb: {second}\nc: {third}\n")
    (tmp_path / "empty.yaml").write_text("")
    assert [line.partition(": ")[2][:30] for line in yaml_files.problems(tmp_path)] == [
        "its aliases (*name) stand for "
    ] * is_refused


def test_the_line_for_an_error_of_hydra(data_regression, tmp_path):
    (tmp_path / "optim").mkdir()
    for name in ("sgd", "adamw"):
        (tmp_path / f"optim/{name}.yaml").write_text(f"name: {name}\n")

    def missing(file: str | None, text: str = "x", options: Any = ()) -> MissingConfigException:
        return MissingConfigException(text, file, options)

    composing = ConfigCompositionException
    errors: dict[str, Exception] = {
        "an option": missing("optim/sdg"),
        "an option of a launcher": missing("hydra/launcher/zz"),
        "an option of hydra": missing("hydra/output/zz"),
        "a file without options": missing("optim/sdg", "Primary config module is gone", None),
        "a reference": missing("optim/sdg", "In 'optim/sgd': Could not load 'optim/zz'."),
        "no file": missing(None, "Additional config directory '/x' not found"),
        "an argument": composing("Could not override 'optim.args.rank'.\nKey 'rank' is not in struct"),
        "a key": composing("Could not override 'train.sead'.\nKey 'sead' is not in struct"),
        "an unknown key": composing("x\nfull_key: train.sead\nKey 'sead' not in 'Train'"),
        "an attribute": AttributeError("has no attribute\nfull_key: optim.args"),
        "another error of an argument": ValueError("Key 'rank' is not in struct\nfull_key: optim.args"),
        "a section": ValueError("Cannot merge DictConfig with x\nfull_key: train"),
        "a value": ValueError("Value 'x' of type 'str' could not be converted\n    full_key: train.seed"),
        "no number": ValueError("Cannot convert 'x' to float\n    full_key: train.seed\n    object_type=Train"),
        "an interval": ValueError("optuna does not support sweep type"),
        "an interpolation": ValueError(
            "InterpolationKeyError raised while resolving interpolation: Interpolation key 'a' not found"
        ),
        "itself": ValueError("Recursive interpolation detected"),
        "twice": composing("Could not append to config. An item is already at 'train.seed'."),
        "a file of a list": composing("In 'optim/sgd': ValidationError raised while composing config:\nx"),
        "a name": composing("Error resolving interpolation '${a}', possible interpolation keys: b"),
        "replaced": composing("x raised while resolving interpolation"),
        "places alone": ValueError("    full_key: \n    object_type=x"),
        "Hydra's own": composing("Sweeping over Hydra's configuration is not supported : 'hydra.a=BRACE_CLOSE'"),
    }
    found: dict[str, Any] = {name: hydra_errors.explain(error, tmp_path)[:200] for name, error in errors.items()}
    groups = keys.config.GROUPS
    values, choices = {group: {"name": "x"} for group in groups}, dict.fromkeys(groups, "x")
    found["right"] = hydra_errors.option_problems(values, choices, [tmp_path])
    found["wrong"] = hydra_errors.option_problems(
        values | {"model": {}, "data": {"name": "y"}}, choices | {"optim": None}, [tmp_path]
    )
    with pytest.raises(yaml.YAMLError) as caught:
        yaml.safe_load("a: 1\nb: [")
    found["yaml"] = hydra_errors.explain(caught.value, tmp_path)
    wrong = UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")
    found["no file is wrong"] = hydra_errors.explain(wrong, tmp_path)
    (tmp_path / "optim/zz.yaml").write_bytes(b"name: \xff")
    found["a file is"] = hydra_errors.explain(wrong, tmp_path).replace(str(tmp_path), "conf")
    data_regression.check(known(found))
