"""One override at a time, before Hydra composes: what is refused, in which words, and what is put in quotes."""

from __future__ import annotations

import copy
import dataclasses
import re

import pytest
from conftest import CONF, compose

from legroom.cli import argv, flags
from legroom.options import keys, menus, model_families, overrides, training_arguments, validate


def said(text: str, sweeping: bool = False) -> str:
    """The one line for an override that is refused."""
    (line,) = overrides.problems([text], [CONF], sweeping)
    assert "\n" not in line and "Error" not in line
    return line


@pytest.mark.parametrize(
    "typed, expected",
    [
        # arguments of transformers
        ("fp16=true", "Type precision=fp16."),
        ("fp16=false", "the opposite is precision=fp16"),
        ("seed=3", "Type train.seed=3."),
        ("output_dir=x", "Type hydra.run.dir=x."),
        ("per_device_train_batch_size=8", "Type batch.per_device=8."),
        ("gradient_accumulation_steps=4", "Type accumulation.steps=4."),
        ("gradient_checkpointing=true", "Type checkpointing=full."),
        ("optim=adamw_torch", "Type optim=adamw."),
        ("per_device_eval_batch_size=8", "Type eval.batch=8."),
        ("max_length=64", "Type data.seq_len=64."),
        ("warmup_ratio=0.1", "Type train.warmup_steps=<steps>"),
        ("overwrite_output_dir=true", "Leave it out: each run has a new folder."),
        ("lr_scheduler_kwargs={}", "Leave it out"),
        ("lr_scheduler_type=inverse_sqrt", "Type train.schedule=<linear|cosine|constant|"),
        ("warmup_steps=0.1", "Type train.warmup_steps=<a whole number>."),
        ("report_to=wandb", "Type tracker=wandb."),
        ("report_to=comet_ml", "Type tracker=<local|"),
        ("resume_from_checkpoint=x", "Type resume=x."),
        ("resume_from_checkpoint=true", "Type resume=latest."),
        ("deepspeed=ds.json", "Type parallelism=zero."),
        ("fsdp=full_shard", "Type parallelism=fsdp."),
        ("no_cuda=true", "Type device=cpu."),
        ("no_cuda=false", "the opposite is device=cpu"),
        ("save_total_limit=2", "Type save.keep=2."),
        ("do_train=true", "Leave it out: this command trains."),
        ("do_eval=false", "Type eval.enabled=false."),
        ("lora_r=8", "Type adapter=lora adapter.rank=8."),
        ("lora_target_modules=q_proj", "Type adapter.targets=q_proj."),
        ("dataset_name=imdb", "Type data=hub data.path=imdb."),
        ("neftune_noise_alpha=5", "It is an argument of transformers, and nothing takes its place here."),
        ("num_train_epoch=3", "Type train.epochs=3."),
        # with a section before it
        ("train.lr=1e-4", "Type train.learning_rate=1e-4."),
        ("optim.lr=1e-4", "Type train.learning_rate=1e-4."),
        ("optim.weight_decay=0.1", "Type train.weight_decay=0.1."),
        ("optim.betas=[0.9,0.95]", "optim.beta1=<number> optim.beta2=<number>."),
        ("optim.eps=1e-6", "Type optim.epsilon=1e-6."),
        ("model.hidden_size=64", "Type model.width=64."),
        ("model.num_hidden_layers=2", "Type model.layers=2."),
        ("data.max_length=64", "Type data.seq_len=64."),
        ("eval.batch_size=8", "Type eval.batch=8."),
        ("train.batch_size=8", "Type batch.per_device=8."),
        ("adapter.target_modules=q_proj", "Type adapter.targets=q_proj."),
        ("precision=float16", "Type precision=fp16."),
        ("precision=bfloat16", "Type precision=bf16."),
        # keys without their section, and misspelt ones
        ("path=a.txt", "Type data.path=a.txt."),
        ("Precision=bf16", "Type precision=bf16."),
        ("train.learning_rat=1", "train.learning_rate"),
        ("träin.seed=1", "Type train.seed=1."),
        # experiments
        ("experiment/guide=vanilla", "Type +experiment/guide=vanilla."),
        ("+experiment=vanilla", "Type +experiment/guide=vanilla."),
        ("experiment=vanilla", "Type +experiment/guide=vanilla."),
        # options
        ("precision=16", "Did you mean bf16 or bf16_pure or fp16?"),
        ("accumulation=3", "Type accumulation.steps=3."),
        ("accumulation=4", "Type accumulation.steps=4."),
        ("checkpointing=true", "Type checkpointing=full."),
        ("precision={name:bf16,bits:16}", "precision={name:bf16,bits:16}: there is no such option"),
        ("precision=[bf16,null]", "precision=[bf16,null]: there is no such option"),
        ("precision=true", "precision=true: there is no such option"),
        ("checkpointing=false", "Type checkpointing=none."),
        ("model=Qwen/Qwen3-0.6B", "Type model.pretrained=Qwen/Qwen3-0.6B."),
        ("model=bert-base-uncased", "Did you mean model=bert_base?"),
        ("model=t5-small", "type model.pretrained=t5-small."),
        ("model=[bert_tiny]", "there is no such option"),
        ("model@x=bert_tiny", "Type model=<option>"),
        ("+model=bert_tiny", "without a plus"),
        ("bf16", "Did you mean precision=bf16?"),
        # values
        ("~train.seed", "cannot be taken out"),
        ("train.epochs=null", "it must be a whole number."),
        ("train.seed=1e3", "Type train.seed=1000."),
        ("train.seed=true", "it must be a whole number."),
        ("train.learning_rate=[1]", "it must be a number or null."),
        ("data.path=[a,b]", "it must be a text"),
        ("resume=true", "Type resume=latest"),
        ("train=3", "train is a section"),
        ("optim.name=sgd", "Type optim=<option>."),
        ("optim.args=3", "Type optim.args.<name>=<value>."),
        ("tracker.tags=a", "Type tracker.tags=[a]."),
        ("tracker.tags=[[a]]", "Type tracker.tags=[<value>]."),
        # what cannot be read
        ("train.seed", "Type train.seed=<value>."),
        ("train.seed =3", "without spaces"),
        ("=3", "without spaces"),
        ("data.path='a b", "a quote"),
        ('data.path="a b', "a quote"),
        ("train.seed=[1", "a whole number"),
        ("optim.args=[1", "Type optim.args.<name>=<value>."),
        ("train.seed=1,", "a whole number"),
        ("train.seed=1\n2", "train.seed=1\\n2 "),
        ("train.seed=\x1b[31m", "train.seed=\\x1b[31m"),
        # sweeps without -m
        ("train.seed=1,2", "add -m"),
        ("train.seed=range(3)", "add -m"),
        ("precision=glob(*)", "add -m"),
        ("data.path=a,b.txt", "type \"data.path='a,b.txt'\"."),
    ],
)
def test_an_override_that_cannot_be_used_says_what_to_type(typed, expected):
    assert expected in said(typed)


@pytest.mark.parametrize(
    "typed", ["tracker.tags=[a,b]", "tracker.tags=[]", "adapter.targets=[q_proj]", "adapter.targets=all"]
)
def test_a_list_may_be_typed(typed):
    assert overrides.problems([typed], [CONF], False) == []


TEXT_KEYS = [name for name, rule in keys.schema().items() if rule.kind is str and not rule.choices]
FOLDERS = ["hydra.run.dir", "hydra.sweep.dir", "hydra.sweep.subdir", "hydra.job.name"]


@pytest.mark.parametrize("key", [*TEXT_KEYS, *FOLDERS])
def test_an_empty_path_id_or_name_is_refused(key):
    """`model.pretrained=$UNSET` trained another model from scratch, and `data.path=` took the current folder."""
    for value in ("", "''", "' '"):
        assert f"{key}= is empty: is the shell's variable set?" in said(f"{key}={value}")
    assert f"{key}= is empty" in said(f"{key}=a,''", sweeping=True)


def test_an_empty_value_of_a_file_is_refused_as_a_typed_one():
    cfg = compose("data=text", "model=gpt2_tiny", "data.path=x.txt").cfg
    cfg.data.path, cfg.data.text_column, cfg.tracker.tags = "", " ", ["a", ""]
    lines = validate.value_problems(cfg)
    assert [line.partition("= ")[0] for line in lines] == ["data.path", "data.text_column", "tracker.tags"]


@pytest.mark.parametrize("typed", ["train.seed=1,two", "train.epochs=1,null", "precision=fp32,bf17", "model=3,gpt2"])
def test_each_value_of_a_sweep_is_checked(typed):
    assert said(typed, sweeping=True)


EXPERIMENTS = ["+experiment/guide=vanilla,fp16", "+experiment/guide=choice(vanilla,fp16)", "+experiment/guide=glob(*)"]


@pytest.mark.parametrize("typed", ["+experiment/guide=range(3)", "+experiment/guide=shuffle(range(3))"])
def test_an_experiment_has_a_name(typed):
    assert "Type +experiment/guide=<name>." in said(typed, sweeping=True)


@pytest.mark.parametrize(
    "typed", ["train.seed=1,2", "train.seed=range(3)", "precision=glob(*)", "precision=fp32,bf16", *EXPERIMENTS]
)
def test_a_sweep_that_is_one_is_left_alone(typed):
    assert overrides.problems([typed], [CONF], True) == []


def test_the_value_of_a_variable_is_kept_out_of_the_record(monkeypatch):
    monkeypatch.setenv("LEGROOM_SECRET", "abracadabra")
    for typed in ("data.path=${oc.env:LEGROOM_SECRET}", "model.pretrained='a/${ oc.env:LEGROOM_SECRET}'"):
        assert "would stand in the record" in said(typed) and "abracadabra" not in said(typed)
    assert overrides.problems(["hydra.run.dir=${oc.env:HOME}/x"], [CONF], False) == [], "it is in no record"
    assert overrides.problems(["hydra.job.name=${oc.env:HOME}"], [CONF], True) == [], "nor is this"


@pytest.mark.parametrize("folder", ["x/${now:%Y}", "${oc.env:HOME}/x"])
def test_the_folder_of_a_sweep_is_named_on_the_command_line(folder):
    """With ${...} the jobs ran in one folder, and the table was looked for in another."""
    assert "let the shell put it there" in said(f"hydra.sweep.dir={folder}", sweeping=True)
    assert overrides.problems(["hydra.sweep.dir=x/y"], [CONF], True) == []


@pytest.mark.parametrize("name", ["Müller.txt", "a=b.txt", "~/a.txt", "(1).txt", "日本/x y.txt", "it's.txt", "#1.txt"])
def test_a_path_with_any_letters_is_taken_as_it_is(name):
    (text,) = overrides.quoted([f"data.path={name}"])
    assert overrides.problems([text], [CONF], False) == []
    override = keys.parsed(text)
    assert override is not None and override.value() == name
    assert overrides.quoted([text]) == [text]


@pytest.mark.parametrize(
    "typed", ["train.seed=1", "data.path=a.txt", "data.path='a'", "data.path=${x}ä", "data.path=ä,b", "train.seed=ä"]
)
def test_readable_values_get_no_quotes(typed):
    assert overrides.quoted([typed]) == [typed]


def test_menus_of_other_folders_are_not_judged():
    assert overrides.problems(["model=own", "+experiment/own=x"], [], False) == []


ARGUMENTS = sorted({name.partition("=")[0] for name in (*keys.arguments(), "learning_rate", "seed", "weight_decay")})
TYPED = re.compile(r"[\w.]+=(?:<[^>]*>|\[[^]]*\]|[^\s?;,:]*[^\s?;,:.])")
PLAIN_KEYS = re.compile(r"(?<![\w.=/])(?:data|train|eval|save|optim)\.(?!py\b)[a-z_]+(?![\w=.]|\.<)")
PLACEHOLDERS = {"<true or false>": "true", "[<value>]": "[a]", "<share>": "0.5"}  # any other one: a number


def proposed(line: str) -> list[str]:
    """Every override that a line proposes, with values in place of what stands in <>."""
    found = []
    for text in TYPED.findall(line):
        key, _, value = text.partition("=")
        if value == "<option>":
            found += [f"{key}={option}" for option in menus.options(key, [CONF])]
        elif "|" in value:
            found += [f"{key}={each}" for each in value.strip("<>").split("|")]
        else:
            found.append(f"{key}={PLACEHOLDERS.get(value, '3' if value.startswith('<') else value)}")
    return found


@pytest.mark.parametrize("value", ["x", "3", "true", "false", "none", "a/b", "adamw_torch", ""])
def test_answers_to_arguments_of_transformers_exist(value):
    """No line proposes a key, an option or a choice that does not exist, or an argument of transformers itself."""
    for name in ARGUMENTS:
        if name in keys.schema():
            continue
        said = [*overrides.problems([f"{name}={value}"], [CONF], False), *flags.split([f"--{name}={value}"]).problems]
        for line in said:
            answer = line.split(". ", 1)[-1]
            assert len(said) == 2 and "--help lists all" not in answer, line
            assert overrides.problems(proposed(answer), [CONF], False) == [], line
            assert not [each for each in PLAIN_KEYS.findall(answer) if each not in keys.schema()], line


def test_answers_to_misspelt_arguments_exist():
    for name in ARGUMENTS:
        (line,) = overrides.problems([f"{name[:-2]}{name[-1]}=3"], [CONF], False)
        assert overrides.problems(proposed(line.partition(". ")[2]), [CONF], False) == [], line
        for each in line.partition("Did you mean ")[2].partition("?")[0].split(" or "):
            assert not each or each in keys.schema() or each in keys.arguments(), line


def test_every_argument_of_transformers_is_answered():
    from transformers import TrainingArguments

    for each in dataclasses.fields(TrainingArguments):
        (line,) = flags.split([f"--{each.name}"]).problems
        assert re.search(r"Type |Leave it out|nothing takes its place", line), line


def test_optimizers_of_transformers_have_their_option():
    used = {f"optim={name}": menus.option_values("optim", name, [CONF]) for name in menus.options("optim", [CONF])}
    for values in used.values():
        if values.get("kind") == "factory":  # a class of the user's, which transformers does not know
            continue
        name = f"optim={values['transformers_name']}"
        option = keys.arguments().get(name) or name
        assert used[option]["transformers_name"] == values["transformers_name"]


def test_sizes_of_transformers_name_our_keys():
    for names in (model_families.SIZES, *model_families.OTHER_SIZES.values()):
        for ours, theirs in names.items():
            assert f"Type model.{ours}=" in said(f"{theirs}=3"), theirs


def test_keys_set_the_numbers_of_transformers():
    cfg = compose("device=cpu").cfg
    found = []
    for name, entry in training_arguments.entries(cfg, "x").items():
        key = (keys.arguments().get(name) or "") if name in keys.arguments() else f"train.{name}"
        rule = keys.rule_of(key)
        if type(entry) in (int, float) and rule is not None and rule.kind in (int, float):
            changed, (section, _, leaf) = copy.deepcopy(cfg), key.partition(".")
            setattr(getattr(changed, section), leaf, 7)
            assert training_arguments.entries(changed, "x")[name] == 7, name
            found.append(name)
    assert len(found) > 8, found


@pytest.mark.parametrize(
    "typed, read",
    [
        ("tracker.tags=mine", "tracker.tags=[mine]"),
        ("adapter.modules_to_save=embed_tokens", "adapter.modules_to_save=[embed_tokens]"),
        ("adapter.modules_to_save=null", "adapter.modules_to_save=null"),
        ("tracker.tags=[a,b]", "tracker.tags=[a,b]"),
        ("tracker.tags=a,b", "tracker.tags=a,b"),  # of a sweep
    ],
)
def test_one_word_is_a_list_of_one(typed, read):
    assert overrides.quoted([typed]) == [read]


@pytest.mark.parametrize(
    "typed, instead", [("hydra.sweep.dir=mine", "hydra.run.dir=mine"), ("hydra/launcher=joblib", "-m")]
)
def test_flags_of_a_sweep_are_refused_in_one_run(command, typed, instead):
    ended = command(typed, "train.max_steps=1", fork_server=None)
    assert ended.code == 2 and typed in ended.err and "-m" in ended.err and instead in ended.err, ended.err
    assert not argv.only_for_sweeps(["hydra.run.dir=x", "train.seed=1"])


@pytest.mark.parametrize(
    "typed, instead",
    [
        ("hydra=3", "Leave it out"),
        ("hydra.verbose=[1,{a:2}]", "hydra.verbose=true"),
        ("hydra.verbose=3", "hydra.verbose=true"),
        ("hydra.launcher=3", "hydra/launcher=<name>"),
        ("hydra.sweeper=[1]", "hydra/sweeper=<name>"),
        ("hydra.sweeper.params={presicion:fp32}", "-m train.seed=1,2"),
        ("+hydra.sweeper.params.presicion=fp32", "-m train.seed=1,2"),
        ("recipe.x=3", "recipe=<option>"),
        ("resume_allow=(", "resume_allow=[<value>]"),
    ],
)
def test_a_value_that_hydra_would_stumble_over_has_a_way_out(typed, instead):
    assert instead in said(typed, sweeping=True)


@pytest.mark.parametrize("typed", ["hydra.verbose=true", "hydra.verbose=[a,b]", "hydra.launcher={n_jobs:2}"])
def test_values_that_hydra_takes_are_accepted(typed):
    assert overrides.problems([typed], [CONF], True) == []


def test_values_that_a_file_gives_a_sweeper_are_checked(command, tmp_path):
    (tmp_path / "experiment/own").mkdir(parents=True)
    params = "presicion: fp32,bf16\n      train.seed: 1,x\n      data.path: ''"
    text = f"# @package _global_\nhydra:\n  sweeper:\n    params:\n      {params}\n"
    (tmp_path / "experiment/own/x.yaml").write_text(text)
    ended = command("-m", "--config-dir", str(tmp_path), "+experiment/own=x", "device=cpu", fork_server=None)
    assert ended.code == 2, ended
    for line, word in zip(
        ended.err.splitlines(), ["Did you mean precision", "train.seed=x", "data.path="], strict=True
    ):
        assert "hydra.sweeper.params" in line and word in line
    rightly = {"precision": "fp32,bf16", "train.seed": "range(1,3)", "x": {"type": "float"}}
    assert overrides.swept_in_a_file(rightly, [CONF]) == []


@pytest.mark.parametrize("name", ["gaudi2", "tpu-v5p", "trn1", "apple_m3"])
def test_devices_without_cuda_and_rocm_are_refused_in_words(name):
    (line,) = overrides.problems([f"gpu={name}"], [CONF], False)
    assert "CUDA and ROCm" in line
