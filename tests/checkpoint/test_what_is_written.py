"""Which checkpoint a training goes on from, and what a saved model is made of: made-up checkpoints and models."""

from __future__ import annotations

import copy
import itertools
import json
from types import SimpleNamespace

import pytest
import torch
import transformers
from conftest import compose, small
from safetensors.torch import save_file
from torch import nn

from legroom.checkpoint import exported, fingerprints, merged, newest, reopened, saver, state
from legroom.errors import Refusal
from legroom.records import checkpoint_files, run_folder
from legroom.records.checkpoint_files import Checkpoint
from legroom.third_party import bitsandbytes_private


@pytest.fixture(scope="module")
def plain():
    return compose(*small()).cfg


# --- the newest ----------------------------------------------------------------------------------


def test_rank_0_alone_looks_for_a_checkpoint(plain, monkeypatch):
    cfg = copy.deepcopy(plain)
    cfg.resume = "latest"
    monkeypatch.setattr(newest.collectives, "rank_index", lambda: 1)
    monkeypatch.setattr(newest.collectives, "all_gather", lambda own: [("of rank 0", "", []), own])
    assert newest.checkpoint_for(cfg, None, {}, print) == "of rank 0"


def test_what_a_training_depends_on(plain, tmp_path, monkeypatch):
    monkeypatch.setattr(fingerprints.rows, "digest", lambda rows: "rows" * 20)
    weights = []
    monkeypatch.setattr(fingerprints, "_weights", lambda folder: weights.append(folder) or [("w", 1)])
    (tmp_path / "config.json").write_text("{}")

    def prints(pretrained=None, tokenizer=None, name="text", task=None, adapter="none"):
        cfg = copy.deepcopy(plain)
        cfg.model.pretrained, cfg.data.name, cfg.data.task, cfg.adapter.name = pretrained, name, task, adapter
        return fingerprints.of_training(cfg, SimpleNamespace(train=[], tokenizer=tokenizer))

    tokenizer = SimpleNamespace(get_vocab=lambda: {"b": 1, "a": 0}, special_tokens_map={}, chat_template="one")
    assert prints() == {"data": ("rows" * 20)[: fingerprints.FINGERPRINT_DIGITS]}
    assert prints(tokenizer=tokenizer).keys() == {"data", "tokenizer"}
    for chat in (dict(name="chat"), dict(task="chat")):
        one = prints(tokenizer=tokenizer, **chat)
        tokenizer.chat_template += "another"
        other = prints(tokenizer=tokenizer, **chat)
        assert one["template"] != other["template"] and one["tokenizer"] == other["tokenizer"]
    whole = prints(pretrained=str(tmp_path))
    assert weights == [] and prints(pretrained=str(tmp_path), adapter="lora")["model"] != whole["model"]
    assert weights == [tmp_path] and "model" not in prints(pretrained="no id at all")
    (tmp_path / "config.json").write_text('{"a": 1}')
    assert prints(pretrained=str(tmp_path))["model"] != whole["model"]


# --- the model at the end ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "rank,tokenizer,error", [(0, True, None), (0, False, None), (1, True, None), (0, True, "another")]
)
@pytest.mark.parametrize("merge", [True, False])
def test_a_model_gets_its_name_once_it_is_whole(monkeypatch, tmp_path, rank, tokenizer, error, merge):
    log: list = []
    model = SimpleNamespace(config=SimpleNamespace(use_cache=False))

    def write(cfg, given, target, weights, data, warn):
        log.append(["written", given.config.use_cache, weights])
        target.mkdir(exist_ok=True)
        (target / "model").touch()
        if error:
            raise reopened.SavedWrong(error)

    def save_tokenizer(target):
        target.mkdir()
        (target / "tokenizer").touch()

    monkeypatch.setattr(saver.unwrap, "inner_model", lambda *_: model)
    monkeypatch.setattr(saver, "_gathered_weights", lambda *_: "weights")
    monkeypatch.setattr(saver, "_write_model", write)
    monkeypatch.setattr(saver.collectives, "rank_index", lambda: rank)
    monkeypatch.setattr(saver.collectives, "barrier", lambda: log.append("barrier"))
    left = tmp_path / checkpoint_files.UNFINISHED_MODEL
    left.mkdir()
    (left / "left").touch()
    cfg = SimpleNamespace(save=SimpleNamespace(merge=merge))
    loop = SimpleNamespace(accelerator=None, model=None, optimizer=None)
    data = SimpleNamespace(tokenizer=SimpleNamespace(save_pretrained=save_tokenizer) if tokenizer else None)
    if error:
        with pytest.raises(reopened.SavedWrong, match="^another: it is in model-differs instead of model.") as raised:
            saver.save_final(cfg, loop, data, tmp_path, log.append)
        assert ("save.merge=false resume=latest" in str(raised.value)) == merge and "barrier" not in log
    else:
        saver.save_final(cfg, loop, data, tmp_path, log.append)
        assert log == [*[["written", True, "weights"]] * (rank == 0), "barrier"] and model.config.use_cache is False
    name = run_folder.DIFFERENT_MODEL_FOLDER if error else run_folder.MODEL_FOLDER
    files = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    own = [f"{name}/model", *[f"{name}/tokenizer"] * tokenizer]
    assert files == (own if rank == 0 else [f"{checkpoint_files.UNFINISHED_MODEL}/left"])


def test_a_full_disk_keeps_no_half_of_a_model(monkeypatch, tmp_path):
    def write(cfg, model, target, *_):
        target.mkdir()
        (target / "half").touch()
        raise OSError("full")

    model = SimpleNamespace(config=SimpleNamespace(use_cache=False))
    monkeypatch.setattr(saver.unwrap, "inner_model", lambda *_: model)
    monkeypatch.setattr(saver, "_gathered_weights", lambda *_: None)
    monkeypatch.setattr(saver, "_write_model", write)
    with pytest.raises(OSError, match="full"):
        loop = SimpleNamespace(accelerator=None, model=None, optimizer=None)
        saver.save_final(None, loop, SimpleNamespace(tokenizer=None), tmp_path, print)
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("kind", ["pipeline", "zero", "zero 3", "fsdp", "fsdp adapter", "plain"])
def test_where_whole_weights_come_from(monkeypatch, kind):
    split = SimpleNamespace(gathered=lambda: "of the pipeline") if kind == "pipeline" else None
    monkeypatch.setattr(saver.pipeline, "of", lambda _: split)
    seen = []
    monkeypatch.setattr(saver, "get_model_state_dict", lambda model, options: seen.append(options) or "of FSDP")
    plugin = SimpleNamespace(zero_stage=3 if kind == "zero 3" else 2) if "zero" in kind else None
    accelerator = SimpleNamespace(deepspeed_plugin=plugin, get_state_dict=lambda _: "of DeepSpeed")
    model = SimpleNamespace(**({"unshard": None} if "fsdp" in kind else {}))
    if "adapter" in kind:
        model.get_base_model = lambda: "base"
    found = saver._gathered_weights(SimpleNamespace(bare_model=None, accelerator=accelerator, model=None), model)
    assert found == {
        "pipeline": "of the pipeline",
        "zero 3": "of DeepSpeed",
        "fsdp": "of FSDP",
        "fsdp adapter": "of FSDP",
    }.get(kind)
    for options in seen:
        assert options.full_state_dict and options.cpu_offload and options.ignore_frozen_params == ("adapter" in kind)


CARDS = [(0, True, True, False), (0, True, True, True), (1, True, True, False), (0, False, True, False)]


@pytest.mark.parametrize("rank,final,there,fails", [*CARDS, (0, True, False, False)])
def test_whose_card_is_written(monkeypatch, tmp_path, rank, final, there, fails):
    written, warned = [], []

    def write(*given):
        written.append(given[1:])
        if fails:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(saver.collectives, "rank_index", lambda: rank)
    monkeypatch.setattr(saver.model_card, "write", write)
    target = tmp_path / run_folder.MODEL_FOLDER
    if there:
        target.mkdir()
    record, data = SimpleNamespace(config={"save": {"final": final}}), SimpleNamespace(train=[1, 2, 3])
    saver.write_card(record, tmp_path, data, warned.append)
    writes = rank == 0 and final and there
    assert written == [(target, 3)] * writes and len(warned) == fails
    saver.write_card(record, None, data, warned.append)
    assert len(written) == writes


# --- adapters ------------------------------------------------------------------------------------


def adapted(tmp_path, **settings):
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    sizes = dict(hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2)
    config = transformers.LlamaConfig(vocab_size=16, pad_token_id=0, **sizes)
    model = transformers.LlamaForCausalLM(config)
    model.save_pretrained(tmp_path / "base")
    model = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "base")
    wrapped = peft.get_peft_model(
        model, peft.LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM", **settings)
    )
    for name, weight in wrapped.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(weight)
    return wrapped


def test_an_adapter_is_compared_with_itself_and_left_as_it_was(tmp_path, monkeypatch):
    model = adapted(tmp_path)
    merged.save_adapter(model, tmp_path / "adapter")
    ids = torch.arange(12) % 16
    assert reopened.check_adapter(tmp_path / "adapter", model, ids, False) is None
    assert list(model.peft_config) == ["default"] and model.active_adapter == "default"
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight.neg_()
    with pytest.raises(reopened.SavedWrong, match="has other logits"):
        reopened.check_adapter(tmp_path / "adapter", model, ids, False)
    assert list(model.peft_config) == ["default"]
    monkeypatch.setattr(reopened, "_opened", lambda load: None)
    assert reopened.check_adapter(tmp_path / "adapter", model, ids, False) == reopened.NO_MEMORY
    model = adapted(tmp_path, modules_to_save=["lm_head"])
    with pytest.raises(reopened.SavedWrong, match="the saved adapter lacks lm_head.weight"):
        reopened.check_adapter(tmp_path / "adapter", model, ids, False)


def test_a_merged_model_computes_what_the_adapter_did(tmp_path):
    model = adapted(tmp_path)
    ids = torch.arange(12)[None] % 16
    expected = model.eval()(input_ids=ids).logits
    weights = merged.save(model, tmp_path / "merged", torch.float32)
    opened = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "merged")
    torch.testing.assert_close(opened.eval()(input_ids=ids).logits, expected)
    assert weights.keys() == opened.state_dict().keys() and model.training is False


@pytest.mark.parametrize("own,ends,former,written,noted", [
    (2, [2], None, None, False), (2, [2, 5], None, {"eos_token_id": [2, 5]}, True), ([2, 5], [2, 5], None, None, False),
    ([2], [2, 5], '{"top_k": 3}', {"top_k": 3, "eos_token_id": [2, 5]}, True),
])  # fmt: skip
def test_where_a_saved_model_ends_its_answers(tmp_path, monkeypatch, own, ends, former, written, noted):
    monkeypatch.setattr(merged.answer_ends, "end_tokens", lambda *_: ends)
    file = tmp_path / merged.GENERATION_CONFIG_NAME
    if former:
        file.write_text(former)
    model = SimpleNamespace(generation_config=SimpleNamespace(eos_token_id=own))
    tokenizer = SimpleNamespace(convert_ids_to_tokens=lambda ids: [f"<{each}>" for each in ids])
    notes = merged.save_end_tokens(tmp_path, model, tokenizer)
    assert (json.loads(file.read_text()) if file.exists() else None) == written
    assert [("answers end with <5>," in note, f"had {own}." in note) for note in notes] == [(True, True)] * noted


@pytest.mark.parametrize(
    "bits,dtype,unsure,talks",
    [
        *itertools.product((None,), (torch.float32,), (None, "not compared"), (True, False)),
        *itertools.product((4,), (torch.bfloat16,), (None, "not compared"), (True, False)),
        (None, torch.bfloat16, None, True),
        (4, torch.float32, None, True),
    ],
)
def test_what_an_export_leaves(monkeypatch, tmp_path, bits, dtype, unsure, talks):
    """Compared as rounded wherever weights were in fewer than 32 bits."""
    folder, target, seen = tmp_path / "adapter", tmp_path / "whole", []
    folder.mkdir()
    for name in ("tokenizer.json", "adapter_model.safetensors", "adapter_config.json", "config.json", "README.md"):
        (folder / name).write_text("1,234 rows to train on")
    settings = SimpleNamespace(task_type="CAUSAL_LM")
    base = SimpleNamespace(dtype=dtype)
    model = SimpleNamespace(peft_config={"default": settings}, get_base_model=lambda: base,
                            get_input_embeddings=lambda: SimpleNamespace(weight=torch.ones(10, 1)))  # fmt: skip
    monkeypatch.setattr(exported.trained, "open_adapter", lambda *_, as_trained: (model, "base", ["noted"]))
    monkeypatch.setattr(exported.merged, "save", lambda *given: seen.append(str(given[2])))
    monkeypatch.setattr(
        exported.reopened, "check", lambda *given: seen.append([*given[3:4], given[4].tolist(), given[5]]) or unsure
    )
    monkeypatch.setattr(exported, "has_conversations", lambda _: talks)
    monkeypatch.setattr(exported, "from_dict", lambda values: values)
    monkeypatch.setattr(exported.AutoTokenizer, "from_pretrained", lambda _: None)
    monkeypatch.setattr(exported.merged, "save_end_tokens", lambda *_: ["ends"])
    monkeypatch.setattr(exported.model_card, "write", lambda record, folder, rows: seen.append(rows))
    here = None if dtype == torch.float32 else "of today"  # None: it is in another place than at the training
    monkeypatch.setattr(exported.fingerprints, "of_base", lambda _: here)
    environment = {"base": "of then" if unsure else "of today"} if talks else {}
    record = SimpleNamespace(config={"adapter": {"bits": bits}, "save": {}}, environment=environment)
    notes, not_sure = exported.merge(folder, record, target, "cpu")
    wide = [f"the weights are those in {bits} bits, dequantised, with the adapter added."] if bits else []
    changed = ["base has changed since the adapter was trained beside it: merged, they are another model."]
    assert notes == [
        "noted",
        *changed * bool(unsure and talks and here),
        *[unsure] * bool(unsure),
        *["ends"] * talks,
        *wide,
    ] and not_sure == bool(unsure)
    ids = [*range(10)] * 3 + [0, 1]
    assert seen == [str(base.dtype), ["language_modelling", ids, bool(bits) or dtype != torch.float32], 1234]
    assert record.config["save"]["merge"]
    assert [path.name for path in target.iterdir()] == ["tokenizer.json"] and not list(tmp_path.glob(".*"))
    monkeypatch.setattr(exported.reopened, "check", lambda *_: (_ for _ in ()).throw(reopened.SavedWrong("another")))
    with pytest.raises(Refusal, match="another: it was removed again."):
        exported.merge(folder, record, tmp_path / "second", "cpu")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["adapter", "whole"]


# --- what a checkpoint holds ---------------------------------------------------------------------


def test_a_training_is_collected_and_restored_as_it_was(tmp_path):
    """Of a model with a frozen weight, a shared one and a buffer, by AdamW with two groups."""

    def made():
        torch.manual_seed(0)
        model = nn.ModuleDict(
            {"a": nn.Linear(2, 2), "norm": nn.BatchNorm1d(2), "b": nn.Linear(2, 2), "c": nn.Linear(2, 2)}
        )
        model["c"].weight, model["b"].bias = model["a"].weight, nn.Parameter(torch.ones(2), requires_grad=False)
        groups = [
            {"params": [model["a"].weight, model["b"].weight]},
            {"params": [model["a"].bias, model["c"].bias], "lr": 0.5},
        ]
        optimizer = torch.optim.AdamW([*groups, {"params": list(model["norm"].parameters())}], lr=0.25)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, [lambda step: 1 / (1 + step)] * 3)
        accelerator = SimpleNamespace(unwrap_model=lambda model, **_: model, scaler=None)
        return SimpleNamespace(
            model=model, bare_model=model, optimizer=optimizer, scheduler=scheduler, accelerator=accelerator
        )

    def step(loop):
        for weight in loop.model.parameters():
            weight.grad = torch.full_like(weight, 0.5) if weight.requires_grad else None
        loop.optimizer.step()
        loop.scheduler.step()

    loop = made()
    step(loop)
    loop.model["norm"].running_mean += 3
    values, tensors = state.collect(loop)
    names = ["a.weight", "a.bias", "b.weight", "c.bias", "norm.bias", "norm.weight"]
    buffers = ["norm.num_batches_tracked", "norm.running_mean", "norm.running_var"]
    assert sorted(tensors["weights"]) == sorted([*names, *buffers])
    assert {name.rpartition("/")[0] for name in tensors["optimizer"]} == set(names)
    assert values["boxes"]["a.weight"] == {"shape": [2, 2], "offset": [0, 0]} and values["scaler"] is None
    assert [group["parameters"] for group in values["optimizer"]["groups"]][:2] == [
        ["a.weight", "b.weight"],
        ["a.bias", "c.bias"],
    ]
    copies = {kind: {name: each.detach().clone() for name, each in pieces.items()} for kind, pieces in tensors.items()}
    values, files = json.loads(json.dumps(values)), []
    for kind, pieces in copies.items():
        save_file(pieces, tmp_path / f"{kind}.safetensors")
        files.append(f"{kind}.safetensors")
    other = made()
    with torch.no_grad():
        other.model["a"].weight.zero_()
    state.restore(other, Checkpoint(tmp_path, 1, [values | {"files": files}]))
    assert other.scheduler.last_epoch == 1
    assert [group["lr"] for group in other.optimizer.param_groups] == [0.125, 0.25, 0.125]
    for one in (loop, other):
        step(one)
    for name, weight in loop.model.state_dict().items():
        assert torch.equal(weight, other.model.state_dict()[name]), name
    for harm in (lambda v: v["optimizer"].pop("groups"), lambda v: v["scheduler"].update(last_epoch="x")):
        damaged = copy.deepcopy(values) | {"files": files}
        harm(damaged)
        with pytest.raises(Refusal):
            state.restore(made(), Checkpoint(tmp_path, 1, [damaged]))


def test_a_paged_optimizers_states_are_in_pages_and_its_counters_are_not(monkeypatch):
    """As bitsandbytes makes them."""
    made, weight = [], torch.nn.Parameter(torch.zeros(4))

    def buffer(optimizer: object, weight: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        made.append(dtype)
        return torch.zeros(weight.shape, dtype=dtype)

    monkeypatch.setattr(bitsandbytes_private, "state_buffer", buffer)
    for paged, values in itertools.product((True, False), (torch.arange(4.0), torch.tensor(3.0))):
        found = state._on_device(SimpleNamespace(is_paged=paged), weight, values)
        assert torch.equal(found, values)
    assert made == [torch.float32]
