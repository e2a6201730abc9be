"""What save.final writes is opened again before the run is ok; a merged model is untied where its adapter untied it."""

from __future__ import annotations

import json
import types

import pytest
import torch
import transformers
from chat import save_tokenizer
from conftest import compose, small

from legroom.checkpoint import merged, reopened, saver
from legroom.data import dataset
from legroom.models import builder
from legroom.records import checkpoint_files, run_folder

TOLD = ["train.max_steps=3", "train.learning_rate=0.05", "save.final=true", "measure.ledger=false"]


def evaluated(run) -> float:
    """The loss of the saved model, as AutoModel opens it, on the run's evaluation rows."""
    folder = run.folder / run_folder.MODEL_FOLDER
    cfg = compose(*small("recipe=accelerate", f"model.pretrained={folder}")).cfg
    cfg.data.eval_samples = run.record.config["data"]["eval_samples"]
    rows = dataset.build_data(cfg, "language_modelling", builder.configuration(cfg).vocab_size)
    model, report = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(report.values())
    batch = {key: torch.stack([row[key] for row in rows.eval]) for key in rows.eval[0]}
    with torch.no_grad():
        return model.eval()(**batch).loss.item()


@pytest.fixture(scope="module")
def tied(tmp_path_factory):
    """A tied llama with weights of its own."""
    folder = tmp_path_factory.mktemp("tied")
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    config = transformers.LlamaConfig(**sizes, vocab_size=512, tie_word_embeddings=True)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.mark.slow_for(
    "adapter.modules_to_save=[lm_head]", "adapter.targets=[q_proj,embed_tokens]", "adapter.targets=[q_proj]"
)
@pytest.mark.parametrize(
    "words",
    [
        ["adapter.modules_to_save=[embed_tokens]"],
        ["adapter.modules_to_save=[lm_head]"],
        ["adapter.targets=[q_proj,lm_head]"],
        ["adapter.targets=[q_proj,embed_tokens]"],
        ["adapter.targets=[q_proj]"],
    ],
    ids=" ".join,
)
def test_changed_tied_embeddings_are_saved_untied(train, tied, words):
    pytest.importorskip("peft")
    run = train(f"model.pretrained={tied}", "adapter=lora", *words, *TOLD, "save.merge=true")
    assert evaluated(run) == pytest.approx(run.record.evaluation.loss, rel=1e-5)
    config = transformers.AutoConfig.from_pretrained(run.folder / run_folder.MODEL_FOLDER)
    assert config.tie_word_embeddings == (words == ["adapter.targets=[q_proj]"])


def test_gpt2_whose_layers_are_named_otherwise(train):
    pytest.importorskip("peft")
    run = train("model=gpt2_tiny", "adapter=lora", "adapter.modules_to_save=[wte]", *TOLD, "save.merge=true")
    assert evaluated(run) == pytest.approx(run.record.evaluation.loss, rel=1e-5)


@pytest.mark.parametrize("words", [["recipe=trainer"], ["recipe=accelerate", "adapter=lora", "save.merge=true"]])
def test_model_in_shards(train, tied, words):
    run = train(f"model.pretrained={tied}", *words, *TOLD, "save.max_shard_gb=0.00003")
    folder = run.folder / run_folder.MODEL_FOLDER
    shards = list(folder.glob("model-*-of-*.safetensors"))
    assert len(shards) > 1 and (folder / "model.safetensors.index.json").is_file()
    assert all(shard.stat().st_size < 2**17 for shard in shards)  # the embeddings alone are 64 KiB
    assert evaluated(run) == pytest.approx(run.record.evaluation.loss, rel=1e-5)


@pytest.mark.parametrize(
    "words, instead", [([], "save.final=true"), (["save.final=true", "adapter=lora"], "save.merge=true")]
)
def test_shard_size_without_a_model_is_refused(words, instead):
    (problem,) = compose("device=cpu", "save.max_shard_gb=5", *words).problems
    assert problem.startswith("save.max_shard_gb=5 ") and instead in problem


LOSES = """
import transformers
from safetensors.torch import load_file, save_file
save = transformers.PreTrainedModel.save_pretrained
def lose(self, folder, *args, **settings):
    save(self, folder, *args, **settings)
    path = folder / "model.safetensors"
    found = load_file(path)
    found[next(iter(found))][0] += 1e-3
    save_file(found, path, {"format": "pt"})
transformers.PreTrainedModel.save_pretrained = lose
"""


def test_wrongly_saved_model_fails(train, fault):
    told = ["model=gpt2_tiny", *TOLD, "data=source"]
    run = train(*told, fork_server=fault(LOSES), status="failed")
    assert run.record.error.phase == "save" and "transformer.h.0." in run.record.error.message
    assert (run.folder / run_folder.DIFFERENT_MODEL_FOLDER / "tokenizer_config.json").is_file()
    assert not (run.folder / run_folder.MODEL_FOLDER).exists() and (run.folder / "model-differs").is_dir()
    assert [path.name for path in checkpoint_files.in_run(run.folder)] == ["step-00000003"], "nothing is lost"


ADAPTER = """
import peft
from safetensors.torch import load_file, save_file
save = peft.PeftModel.save_pretrained
def lose(self, folder, *args, **settings):
    save(self, folder, *args, **settings)
    path = folder + "/adapter_model.safetensors"
    save_file({name: 2 * weight for name, weight in load_file(path).items()}, path)
peft.PeftModel.save_pretrained = lose
"""


def test_wrongly_saved_adapter_fails(train, fault):
    pytest.importorskip("peft")
    told = ["model=llama_tiny", "adapter=lora", "adapter.modules_to_save=[embed_tokens]", *TOLD]
    run = train(*told, fork_server=fault(ADAPTER), status="failed")
    assert run.record.error.phase == "save" and "logits" in run.record.error.message


@pytest.mark.slow_for("trainer")
@pytest.mark.parametrize("recipe", ["trainer", "accelerate"])
def test_comparing_an_adapter_changes_nothing(train, recipe):
    """The step under the ledger trains the adapter as before."""
    pytest.importorskip("peft")
    told = [f"recipe={recipe}", "model=llama_tiny", "adapter=lora", "adapter.dora=true"]
    saved, alone = train(*told, "save.final=true"), train(*told)
    assert saved.record.evaluation.loss == alone.record.evaluation.loss
    assert saved.record.memory.optimizer_bytes == alone.record.memory.optimizer_bytes > 0
    assert saved.record.memory.peak_tensor_bytes == alone.record.memory.peak_tensor_bytes


def test_other_logits_are_noticed(tied, tmp_path):
    trained = transformers.LlamaForCausalLM.from_pretrained(tied)
    trained.save_pretrained(tmp_path)
    trained.config.rms_norm_eps = 3.0
    trained.config.save_pretrained(tmp_path)
    with pytest.raises(reopened.SavedWrong, match="logits"):
        reopened.check(tmp_path, trained, trained.state_dict(), "language_modelling", torch.tensor([1, 2]), False)


def test_missing_weight_is_named(tied):
    model = transformers.LlamaForCausalLM.from_pretrained(tied)
    weights = model.state_dict() | {"extra": torch.ones(1)}
    with pytest.raises(reopened.SavedWrong, match="another extra than"):
        reopened.check(tied, model, weights, "language_modelling", None, False)


@pytest.mark.parametrize("every", [None, 2])
def test_unwritable_checkpoint_is_a_warning(monkeypatch, every):
    cfg, warned = compose("save.final=true", f"save.every_steps={every or 'null'}").cfg, []

    def full(*_, **__):
        raise OSError(122, "Disk quota exceeded")

    monkeypatch.setattr(saver.Saver, "save", full)
    progress = types.SimpleNamespace(warn=warned.append)
    saver.Saver.before_final_phase(_saver(cfg, progress), 3, evaluates=True)
    assert "quota" in warned[0]


def _saver(cfg, progress):
    made = saver.Saver.__new__(saver.Saver)
    made.cfg, made.progress, made.possible, made.saved_step = cfg, progress, True, None
    return made


def test_adapter_names_its_base(tied, tmp_path, monkeypatch):
    peft = pytest.importorskip("peft")
    monkeypatch.chdir(tied.parent)
    base = transformers.LlamaForCausalLM.from_pretrained(tied.name)
    merged.save_adapter(peft.get_peft_model(base, peft.LoraConfig(target_modules=["q_proj"])), tmp_path)
    assert json.loads((tmp_path / "adapter_config.json").read_text())["base_model_name_or_path"] == str(tied)


COUNTED = """
import os, signal, legroom.measure.memory_breakdown as part
part.count = lambda *_, **__: os.kill(os.getpid(), signal.SIGTERM)
"""


def test_signal_while_memory_is_counted(train, fault):
    run = train("model=gpt2_tiny", "train.max_steps=1", fork_server=fault(COUNTED))
    assert "StopNow" not in (run.folder / run_folder.LOG_FILE).read_text()


KILLED_IN_SAVE = """
import os, transformers
save = transformers.PreTrainedModel.save_pretrained
def killed(self, *args, **settings):
    save(self, *args, **settings)
    os.kill(os.getpid(), 9)
transformers.PreTrainedModel.save_pretrained = killed
"""


@pytest.mark.slow_for("recipe=accelerate parallelism=fsdp parallelism.num_processes=2")
@pytest.mark.parametrize(
    "words",
    [["recipe=trainer"], ["recipe=accelerate", "parallelism=fsdp", "parallelism.num_processes=2"]],
    ids=" ".join,
)
def test_kill_in_a_save(command, fault, tmp_path, words):
    words = [*small(*words), "model=gpt2_tiny", "save.final=true", "measure.ledger=false", "hydra.run.dir=a"]
    assert command(*words, fork_server=fault(KILLED_IN_SAVE)).code == 1
    left = tmp_path / "a" / checkpoint_files.UNFINISHED_MODEL
    assert any(left.iterdir()) and not (tmp_path / "a" / run_folder.MODEL_FOLDER).exists()
    (left / "of_another.safetensors").write_text("x")
    assert command(*words, "resume=latest").code == 0
    assert not list((tmp_path / "a").glob(".model*"))
    assert not list((tmp_path / "a" / run_folder.MODEL_FOLDER).glob("of_another*"))
    transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "a" / run_folder.MODEL_FOLDER)


def test_other_model_is_not_replaced(command, tmp_path):
    own = tmp_path / "a" / run_folder.MODEL_FOLDER / "config.json"
    own.parent.mkdir(parents=True)
    own.write_text("{}")
    words = [*small("model=gpt2_tiny"), "hydra.run.dir=a", "train.max_steps=1"]
    ended = command(*words, "save.final=true", fork_server=None)
    assert ended.code == 2 and "hydra.run.dir=" in ended.err and own.read_text() == "{}"


def test_tokenizer_is_saved_unchanged(train, tmp_path):
    """Without the length to which the rows of the training were cut."""
    given, path = save_tokenizer(tmp_path / "tokenizer", None), tmp_path / "rows.csv"
    path.write_text("text,label\n" + "".join(f"a text,{number % 2}\n" for number in range(8)))
    words = ["model=bert_tiny", "data=text", f"data.path={path}", f"data.tokenizer={given}", "data.task=classification"]
    folder = train(*words, "save.final=true").folder / "model"
    assert (folder / "tokenizer.json").read_text() == (given / "tokenizer.json").read_text()
