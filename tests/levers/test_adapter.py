"""adapter: LoRA trains the same in both recipes, resumes exactly, and is opened by peft."""

from __future__ import annotations

import json

import pytest
import torch
import transformers
from conftest import bare_model, compose
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from legroom.checkpoint import reopened
from legroom.data import byte_tokenizer
from legroom.errors import Refusal
from legroom.levers.adapter import apply as adapter
from legroom.machine import host
from legroom.models import trained
from legroom.records import checkpoint_files, record_file, run_folder

peft = pytest.importorskip("peft", reason="peft is not installed: pip install legroom[peft]")

RECIPES = ["trainer", "accelerate"]
TWO = ["parallelism=fsdp", "parallelism.num_processes=2"]
LORA = ["adapter=lora", "train.max_steps=4", "data.samples=16", "train.schedule=constant"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ["model=llama_tiny", "model.dropout=0"],
        ["model=gpt2_tiny", "adapter.dropout=0.1", "accumulation=x2"],
        ["model=bert_tiny", "checkpointing=full", "precision=bf16"],
        ["model=llama_tiny", "precision=bf16_pure", "optim=adafactor"],
        ["model=llama_tiny", "adapter.dora=true", "adapter.rslora=true"],
        ["model=mixtral_tiny"],
    ],
    ids=" ".join,
)
def test_both_recipes_train_the_same_adapter(train, words):
    one, other = (train(*LORA, f"recipe={recipe}", *words).record for recipe in RECIPES)
    assert one.training.losses == other.training.losses
    assert one.memory.peak_tensor_bytes == pytest.approx(other.memory.peak_tensor_bytes, rel=1e-3)
    assert one.training.losses[0] != one.training.losses[-1]
    assert 0 < one.model.trained_parameters < 0.5 * one.memory.parameter_count


def test_weights_that_are_not_trained_have_no_gradients_and_no_states(train):
    lora, whole = (
        train(*LORA, "model=llama_tiny", "adapter.rank=1").record,
        train("model=llama_tiny", "train.max_steps=4").record,
    )
    trained, most = lora.model.trained_parameters, lora.memory.largest_bytes
    assert most["gradients"] == 4 * trained and most["optimizer"] == pytest.approx(8 * trained, rel=0.05)
    assert most["parameters"] == 4 * lora.memory.parameter_count
    assert lora.memory.parameter_count == whole.memory.parameter_count + trained
    assert lora.speed.model_flops_per_step < 0.8 * whole.speed.model_flops_per_step


def test_recomputation_changes_no_loss(train):
    kept, recomputed = (train(*LORA, "model=llama_tiny", f"checkpointing={name}").record for name in ("none", "full"))
    assert kept.training.losses == recomputed.training.losses
    assert recomputed.memory.activations_bytes < kept.memory.activations_bytes


@pytest.mark.slow_for("lora-accelerate", "qlora-accelerate")
@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize(
    "words", [["adapter=lora", "model=gpt2_tiny"], ["adapter=qlora", "model=llama_tiny"]], ids=["lora", "qlora"]
)
def test_a_resumed_adapter_is_the_one_that_was_never_stopped(train, again, tmp_path, recipe, words):
    if "adapter=qlora" in words:
        pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed: pip install legroom[8bit]")
    options = [*LORA[1:], *words, f"recipe={recipe}", "adapter.dropout=0.1", "save.every_steps=2"]
    run = train(*options)
    checkpoint = run.folder / "checkpoints" / checkpoint_files.folder_name(2)
    with safe_open(next(checkpoint.glob("*weights*.safetensors")), "pt") as file:
        assert file.keys() and all("lora_" in name for name in file.keys())  # noqa: SIM118  (a file)
    (tmp_path / "checkpoints").mkdir()
    checkpoint.rename(tmp_path / "checkpoints" / checkpoint.name)
    resumed, warned = again(tmp_path, *options, "resume=latest")
    assert not warned and resumed.training.resumed_from_step == 2
    assert resumed.training.losses == run.record.training.losses


@pytest.mark.slow_for("bert_tiny")
@pytest.mark.parametrize("model", ["llama_tiny", "bert_tiny"])
def test_peft_opens_what_was_saved_and_it_answers_as_it_was_evaluated(train, model):
    base = train(f"model={model}", "save.final=true").folder / run_folder.MODEL_FOLDER
    asked = [*LORA, f"model.pretrained={base}", "train.learning_rate=0.05", "save.final=true"]
    run = train(*asked)
    assert run.record.config["train"]["learning_rate"] == 0.05
    cfg = compose("recipe=accelerate", "device=cpu", "data.seq_len=32", *asked).cfg
    cfg.data.eval_samples = run.record.config["data"]["eval_samples"]
    bare, rows = bare_model(cfg)
    answers = peft.PeftModel.from_pretrained(bare, str(run.folder / run_folder.MODEL_FOLDER)).eval()
    batch = {key: torch.stack([row[key] for row in rows.eval]) for key in rows.eval[0]}
    with torch.no_grad():
        loss, without = answers(**batch).loss, answers.unload()(**batch).loss
    assert loss.item() == pytest.approx(run.record.evaluation.loss, rel=1e-5) != without.item()


@pytest.mark.slow
def test_two_ranks_train_the_adapter_that_one_trains(train):
    words = [*LORA, "model=llama_tiny", "recipe=accelerate"]
    one = train(*words, "batch.per_device=4").record
    two = train(*words, "batch.per_device=2", "parallelism=ddp", "parallelism.num_processes=2").record
    assert two.training.losses == pytest.approx(one.training.losses, rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("recipe", RECIPES)
def test_sharded_ranks_train_the_adapter_that_one_trains_and_save_it(train, again, tmp_path, recipe, saved_llama):
    words = [*LORA, f"model.pretrained={saved_llama}", f"recipe={recipe}", "save.final=true"]
    words += ["optim=sgd", "train.learning_rate=1"]  # its steps are linear in the gradients
    one = train(*words, "batch.per_device=4")
    sharded = [*words, "batch.per_device=2", "parallelism=fsdp", "parallelism.num_processes=2", "save.every_steps=2"]
    two = train(*sharded)
    assert two.record.training.losses == pytest.approx(one.record.training.losses, rel=1e-5)
    saved, whole = ({}, {})
    for run, found in ((two, saved), (one, whole)):
        with safe_open(run.folder / run_folder.MODEL_FOLDER / "adapter_model.safetensors", "pt") as file:
            found |= {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (a file)
    assert saved.keys() == whole.keys()
    assert all(torch.allclose(saved[name], whole[name], atol=1e-5) for name in whole)
    assert any(whole[name].abs().max() > 1e-3 for name in whole if "lora_B" in name), "it has learnt"
    checkpoint = two.folder / "checkpoints" / checkpoint_files.folder_name(2)
    (tmp_path / "checkpoints").mkdir()
    checkpoint.rename(tmp_path / "checkpoints" / checkpoint.name)
    resumed, _ = again(tmp_path, *sharded, "resume=latest")
    assert resumed.training.losses == two.record.training.losses


def test_named_layers_alone_have_an_adapter():
    cfg = compose(
        "device=cpu", "model=llama_tiny", "adapter=lora", "adapter.targets=[q_proj,v_proj]", "adapter.rank=4"
    ).cfg
    model = adapter.with_adapter(cfg, bare_model(cfg)[0])
    trained = {name.split(".")[-4]: weight for name, weight in model.named_parameters() if weight.requires_grad}
    assert set(trained) == {"q_proj", "v_proj"} and 4 in trained["q_proj"].shape


DEEPSEEK = (
    "model=deepseek_v2_lite model.layers=2 model.width=32 model.heads=4 model.kv_heads=4 model.feed_forward=64 "
    "model.vocab=512 model.experts=4 model.experts_per_token=2 model.config.intermediate_size=64"
)
GPT_OSS = (
    "model=gpt_oss_20b model.layers=2 model.width=32 model.heads=4 model.kv_heads=2 model.config.head_dim=8 "
    "model.feed_forward=64 model.vocab=512 model.experts=4 model.experts_per_token=2"
)


@pytest.mark.parametrize(
    "words, said",
    [
        (
            DEEPSEEK,
            [
                "6 of the linear layers that adapter.targets names: model.layers.0.mlp.gate_proj, ...",
                "2 of the tensors of experts: model.layers.1.mlp.experts.gate_up_proj, ...",
            ],
        ),
        (
            f"{DEEPSEEK} adapter.expert_rank=8",
            ["6 of the linear layers that adapter.targets names: model.layers.0.mlp.gate_proj, ..."],
        ),
        (
            f"{DEEPSEEK} adapter.targets=[shared_experts.down_proj]",
            ["1 of the linear layers that adapter.targets names: model.layers.1.mlp.shared_experts.down_proj"],
        ),
        (GPT_OSS, ["4 of the tensors of experts: model.layers.0.mlp.experts.gate_up_proj, ..."]),
        ("model=mixtral_tiny adapter.expert_rank=8", []),
        ("model=llama_tiny adapter.targets=[q_proj]", []),
        ("model=gpt2_tiny adapter.modules_to_save=[lm_head]", []),
    ],
)
def test_what_has_no_adapter_beside_it_is_said(words, said):
    """peft takes names that experts share with other layers for the experts'."""
    cfg = compose("device=cpu", "adapter=lora", "adapter.rank=4", *words.split()).cfg
    found = adapter.Apply(cfg).warnings(adapter.with_adapter(cfg, bare_model(cfg)[0]))
    assert len(found) == len(said)
    for line, part in zip(found, said):
        assert line.startswith(f"no adapter lies beside {part}. They stay as they are")
        assert ("adapter.expert_rank=8" in line) == ("tensors of experts" in part)


def test_a_merged_model_of_experts_is_the_trained_one(train):
    words = ("model=mixtral_tiny", "adapter=lora", "adapter.expert_rank=8", "train.learning_rate=0.01", "data=source")
    run = train(*words, "save.final=true", "save.merge=true", "data.eval_samples=4")
    again = train(
        f"model.pretrained={run.folder / run_folder.MODEL_FOLDER}",
        "data=source",
        "data.eval_samples=4",
        "train.learning_rate=0",
        "train.max_steps=1",
    )
    assert again.record.evaluation.loss == pytest.approx(run.record.evaluation.loss, rel=1e-5)


# --- refusals --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words,said",
    [
        (["parallelism=fsdp_tp", "parallelism.num_processes=2", "model=llama_tiny"], "Choose parallelism=ddp"),
        (["adapter.targets=[]"], "adapter.targets=[q_proj,v_proj]"),
        (["adapter.targets=7"], "adapter.targets=[q_proj,v_proj]"),
        (["adapter.rank=0"], "adapter.rank"),
        (["adapter.alpha=0"], "no gradients"),
        (
            ["adapter.learning_rate=1", "train.learning_rate=2"],
            "adapter.learning_rate would be ignored",
        ),
        (["model.learning_rate=1"], "model.learning_rate would be ignored"),
        ([*TWO, "adapter.dora=true", "parallelism.wrap=size"], "Type parallelism.wrap=layer."),
    ],
)
def test_it_is_refused_in_words(words, said):
    (problem,) = compose("device=cpu", "adapter=lora", *words).problems
    assert said in problem


def test_an_adapter_that_peft_lacks_for_a_layer_is_refused():
    """Where targets have names that peft takes for experts', which have no DoRA."""
    words = f"{DEEPSEEK} adapter=lora adapter.dora=true adapter.targets=[gate_proj,up_proj]"
    cfg = compose("device=cpu", *words.split()).cfg
    with pytest.raises(Refusal, match=r"^adapter=lora for this model:"):
        adapter.with_adapter(cfg, bare_model(cfg)[0])


def test_dora_of_a_mixture_lies_beside_its_linear_layers(train):
    record = train("model=mixtral_tiny", "adapter=lora", "adapter.dora=true").record
    assert any("tensors of experts" in line for line in record.warnings)


def test_experts_whose_adapters_peft_scales_otherwise_are_refused():
    """Where targets have names that peft takes for experts'."""
    words = f"{DEEPSEEK} adapter=lora adapter.rslora=true adapter.targets=[gate_proj,up_proj]"
    cfg = compose("device=cpu", *words.split()).cfg
    with pytest.raises(Refusal, match=r"^adapter.rslora=true: peft"):
        adapter.with_adapter(cfg, bare_model(cfg)[0])


def test_experts_have_adapters_by_their_rank_or_by_names_of_layers():
    words = f"{DEEPSEEK} adapter=lora adapter.expert_rank=8 adapter.targets=[q_proj,gate_proj,up_proj]"
    cfg = compose("device=cpu", *words.split()).cfg
    with pytest.raises(Refusal, match=r"adapter.targets has gate_proj.* adapter.expert_rank=8"):
        adapter.with_adapter(cfg, bare_model(cfg)[0])


def test_a_layer_that_is_not_there_is_refused_with_those_that_are(train):
    refused = train("model=llama_tiny", "adapter=lora", "adapter.targets=[query]", status="refused").record
    assert "q_proj, k_proj, v_proj" in refused.error.message


def test_without_peft_the_command_says_what_to_install(monkeypatch):
    monkeypatch.setattr(host, "has", lambda package: package != "peft")
    (problem,) = compose("device=cpu", "adapter=lora").problems
    assert "peft" in problem and "adapter=none" in problem


def test_one_name_of_a_layer_is_a_list_of_one():
    words = ["model=llama_tiny", "adapter=lora", "device=cpu"]
    assert compose(*words, "adapter.targets=q_proj").cfg.adapter.targets == ["q_proj"]
    assert compose(*words, "adapter.targets=all-linear").cfg.adapter.targets == "all-linear"
    assert compose(*words, "adapter.targets='.*[qv]_proj'").cfg.adapter.targets == ".*[qv]_proj"


# --- a head on a base that lacks a part of it ---------------------------------------------------------------


@pytest.fixture
def classifier(train, tmp_path):
    """classifier(*words) -> the folder of a run that trains on labels beside a masked language model, whose checkpoint
    has no pooler."""
    config = transformers.AutoConfig.for_model(
        "bert", vocab_size=264, num_hidden_layers=1, hidden_size=64, num_attention_heads=2, intermediate_size=64
    )
    base = tmp_path / "base"
    transformers.BertForMaskedLM(config).save_pretrained(base)
    byte_tokenizer.byte_tokenizer().save_pretrained(base)
    file = tmp_path / "texts.csv"
    file.write_text("text,label\n" + "".join(f"day {kind},{kind}\n" for kind in ("good", "bad") * 4))
    words = ["data=text", f"data.path={file}", "data.task=classification", f"model.pretrained={base}"]
    words += ["train.max_steps=2", "save.final=true", "train.learning_rate=0.05", "recipe=accelerate"]
    return lambda *more: train(*words, *more).folder


@pytest.mark.parametrize("name", ["lora", "qlora"])
def test_what_the_base_lacks_is_trained_and_saved_with_the_adapter(classifier, name):
    if name == "qlora":
        pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed: pip install legroom[8bit]")
    folder = classifier(f"adapter={name}") / run_folder.MODEL_FOLDER
    with safe_open(folder / "adapter_model.safetensors", "pt") as file:
        saved = set(file.keys())
    assert {f"base_model.model.{each}.weight" for each in ("classifier", "bert.pooler.dense")} <= saved
    assert "quantization_config" not in json.loads((folder / "config.json").read_text()), "the base is not in 4 bits"
    answers = []
    for seed in range(2):  # what is initialised anew differs
        torch.manual_seed(seed)
        opened, *_ = trained.open_adapter(folder, record_file.read(folder.parent), "cpu", as_trained=True)
        with torch.no_grad():
            answers.append(opened(torch.arange(8)[None]).logits)
    assert torch.equal(*answers)


def test_an_adapter_without_what_its_base_lacks_is_not_opened(classifier):
    """As earlier versions and other tools leave one."""
    folder = classifier("adapter=lora") / run_folder.MODEL_FOLDER
    file, settings = folder / "adapter_model.safetensors", folder / "adapter_config.json"
    save_file({name: each for name, each in load_file(file).items() if "pooler" not in name}, file)
    said = json.loads(settings.read_text())
    settings.write_text(json.dumps(said | {"modules_to_save": ["classifier"]}))
    with pytest.raises(Refusal, match=r"bert\.pooler\.dense\.bias, bert\.pooler\.dense\.weight.*Train it again"):
        trained.open_adapter(folder, record_file.read(folder.parent), "cpu", as_trained=True)


def test_an_adapter_that_is_saved_without_a_part_of_the_head_is_seen(classifier, tmp_path):
    folder = classifier("adapter=lora") / run_folder.MODEL_FOLDER
    opened, *_ = trained.open_adapter(folder, record_file.read(folder.parent), "cpu", as_trained=True)
    assert reopened.check_adapter(folder, opened, torch.arange(8), rounded=False) is None
    file = folder / "adapter_model.safetensors"
    save_file({name: each for name, each in load_file(file).items() if "pooler" not in name}, file)
    with pytest.raises(reopened.SavedWrong, match=r"lacks bert\.pooler\.dense\.bias"):
        reopened.check_adapter(folder, opened, torch.arange(8), rounded=False)
