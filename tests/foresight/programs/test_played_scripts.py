"""Scripts that know nothing of us on the played GPU: their verdicts, what they are answered, and what is refused."""

from __future__ import annotations

import json
import shlex
import textwrap

import pytest
import torch
from conftest import ROOT
from played_scripts import GPU, ROWS, play, watch_of

from legroom import Refusal
from legroom.cli import check as command
from legroom.foresight.programs import played_run
from legroom.foresight.step_estimate import gpu_of
from legroom.records import record_file
from legroom.report import plots, report, screen_table
from legroom.report.page import run_page
from legroom.units import MIB

LAYERS = 12
LOOP = """
import torch, torch.nn as nn, torch.nn.functional as F
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256)){moved}
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(1000):
    x = torch.randn(64, 256).to(device)
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    {after}
"""
TRAINER = (
    """
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

"""
    + ROWS
    + """
sizes = dict(vocab_size={vocab}, n_positions={positions}, n_embd={width}, n_layer={layers}, n_head={heads})
none = dict(resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)
none |= dict(use_cache=False, attn_implementation="sdpa")
model = GPT2LMHeadModel(GPT2Config(n_inner={feed_forward}, **sizes, **none))
{model}
arguments = TrainingArguments("out", per_device_train_batch_size=32, report_to="none", weight_decay=0.01, {arguments})
Trainer(model=model, args=arguments, train_dataset=Rows()).train()
"""
)
LORA = """
from peft import LoraConfig, get_peft_model
model = get_peft_model(model, LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM"))
"""


def loop(moved=".to(device)", after=""):
    return LOOP.format(moved=moved, after=after)


# --- the figures ------------------------------------------------------------------------------------


@pytest.mark.slow_for(
    "precision=bf16 accumulation=x4 optim=adamw_fused-bf16=True, gradient_accumulation_steps=4-",
    "precision=bf16 adapter=lora-bf16=True, optim='adamw_torch'-model3",
    "precision=fp16 optim=adafactor-fp16=True, optim='adafactor'-",
)
@pytest.mark.parametrize(
    "words, arguments, model",
    [
        ("optim=adamw", "optim='adamw_torch'", ""),
        ("precision=bf16 accumulation=x4 optim=adamw_fused", "bf16=True, gradient_accumulation_steps=4", ""),
        ("precision=bf16 checkpointing=full", "bf16=True, optim='adamw_torch', gradient_checkpointing=True", ""),
        ("precision=bf16 adapter=lora", "bf16=True, optim='adamw_torch'", LORA),
        ("precision=fp16 optim=adafactor", "fp16=True, optim='adafactor'", ""),
    ],
)
def test_a_trainer_script_is_what_the_recipe_predicts(predicted, tmp_path, words, arguments, model):
    """The Trainer's own operations (counts of tokens, checks for NaN) are some thirty calls more a step."""
    sizes = [f"model.layers={LAYERS}", "model.positions=128", "data.seq_len=128", "data.samples=256"]
    recipe = predicted(
        "model=gpt2_tiny", f"gpu={GPU}", "eval.enabled=false", "batch.per_device=32", *sizes, *words.split()
    )
    values = recipe.config["model"]
    names = ("vocab", "positions", "width", "layers", "heads", "feed_forward")
    text = TRAINER.format(length=128, arguments=arguments, model=model, **{name: values[name] for name in names})
    found, memory, speed = play(tmp_path, text), recipe.memory, recipe.speed
    assert found.reserved_bytes == pytest.approx(memory.peak_reserved_bytes, rel=0.01)
    assert found.allocated_bytes == pytest.approx(memory.peak_allocated_bytes, rel=0.01)
    assert found.tensor_bytes == pytest.approx(memory.peak_tensor_bytes, rel=0.002)
    assert found.parts["optimizer"] == memory.optimizer_bytes
    assert found.parts["parameters"] == memory.parameters_bytes
    assert found.step_seconds == pytest.approx(speed.step_seconds_median, rel=0.02)
    assert not (tmp_path / "out").exists() or not list((tmp_path / "out").iterdir())


@pytest.mark.parametrize("moved", [".cuda()", '.to(torch.device("cuda", 0))', ".to(0)", '; model.to("cuda:0")'])
def test_every_way_to_say_the_gpu(tmp_path, moved):
    found = play(tmp_path, loop(moved))
    count = 4 * (2 * 256 * 1024 + 1024 + 256)
    assert found.parts["parameters"] == count and found.parts["optimizer"] == pytest.approx(2 * count, rel=1e-3)
    assert found.verdict == "fits" and found.step_seconds > 0


def test_the_machine_answers_as_the_card_would(tmp_path):
    """Also from the simulation itself: what is allocated now, and at most."""
    found = play(
        tmp_path,
        loop(after="")
        + """
    if step == 0:
        weight = model[0].weight
        assert weight.is_cuda and str(weight.device) == "cuda:0" == str(loss.device) and weight.get_device() == 0
        assert weight.grad.device == torch.device("cuda", 0) and not torch.zeros(3).is_cuda
        assert torch.cuda.get_device_name(0) == "NVIDIA A100-SXM4-80GB" and torch.cuda.device_count() == 1
        assert torch.cuda.get_device_capability() == (8, 0) and torch.cuda.is_bf16_supported()
        assert torch.cuda.get_device_properties(0).total_memory == torch.cuda.mem_get_info()[1] > 2**36
        assert torch.accelerator.current_accelerator().type == "cuda"
        assert 4 * sum(p.numel() for p in model.parameters()) * 4 <= torch.cuda.memory_allocated()
        assert torch.cuda.memory_allocated() <= torch.cuda.max_memory_allocated() <= torch.cuda.max_memory_reserved()
        assert torch.cuda.memory_reserved() % 2**21 == 0 < torch.cuda.memory_stats()["active_bytes.all.peak"]
        with torch.cuda.stream(torch.cuda.Stream()), torch.device("cuda"):
            assert torch.zeros(2).is_cuda
        assert torch.rand(2, generator=torch.Generator("cuda"), device="cuda").is_cuda
        torch.cuda.synchronize()
""",
    )
    assert found.verdict == "fits"


def test_what_is_asked_of_the_card_besides_is_answered(tmp_path, capsys):
    """Nothing is measured, recorded or captured; a script that only asks goes on."""
    asked = """
    import torch.cuda.tunable, torch.cuda.profiler
    torch.cuda.memory._record_memory_history(max_entries=1000)
    torch.cuda.cudart().cudaProfilerStart()
    torch.cuda.profiler.start()
    torch.cuda.tunable.enable(True)
    with torch.cuda.stream(torch.cuda.ExternalStream(12345)), torch.cuda.nvtx.range("forward"):
        torch.cuda.nvtx.mark("mark")
    watts, clock = torch.cuda.power_draw(), torch.cuda.clock_rate()
    print(watts, torch.cuda.utilization(), torch.cuda.temperature(), clock, torch.cuda.host_memory_stats())
    activities = list(torch.profiler.ProfilerActivity.__members__.values())
    with torch.profiler.profile(activities=activities, profile_memory=True) as profiler:
        model(x)
        profiler.step()
    torch.cuda.memory._dump_snapshot("snapshot.pickle")
    assert not torch.cuda.memory._snapshot()["segments"]
    """
    play(tmp_path, loop(after="if step == 0:" + textwrap.indent(textwrap.dedent(asked), " " * 8)))
    assert "300000 100 60 1410 {}" in capsys.readouterr().out


@pytest.mark.parametrize(
    "moved",
    [".cuda(1)", '.to(torch.device("cuda", 1))', ".to(1)", '; model.to("cuda:1")', "; torch.cuda.set_device(1)"]
    + ['; torch.set_default_device("cuda:1")', "; torch.accelerator.set_device_index(1)"],
)
def test_another_gpu_is_refused(tmp_path, moved):
    """The memory of two would be one's."""
    with pytest.raises(Refusal, match=r"script.py:\d+: the script asks for cuda:1, and one GPU is followed"):
        play(tmp_path, loop(moved=moved))


def test_a_text_that_begins_as_a_gpu_is_none(tmp_path):
    assert play(tmp_path, loop(moved='.cuda(); torch.profiler.record_function("cuda:step").__enter__()'))


@pytest.mark.parametrize("name", ["CUDAGraph", "MemPool", "graph", "_compile_kernel"])
def test_what_the_card_alone_can_do_is_refused(tmp_path, name):
    with pytest.raises(Refusal, match=f"{name} is not followed. Ask with"):
        play(tmp_path, loop(after=f"torch.cuda.{name}(None)"))


def test_the_types_of_cuda_make_name_and_know_their_tensors(tmp_path):
    text = """
import numpy
rows = torch.zeros(3, 4)
for moved in (rows.type(torch.cuda.LongTensor), rows.type("torch.cuda.LongTensor"), rows.cuda().long()):
    assert moved.is_cuda and moved.dtype == torch.int64 and moved.type() == "torch.cuda.LongTensor"
    assert isinstance(moved, torch.cuda.LongTensor) and not isinstance(moved, torch.cuda.FloatTensor)
assert rows.type() == "torch.FloatTensor" and not isinstance(rows, torch.cuda.FloatTensor)
assert moved.type(torch.FloatTensor).is_cpu and moved.new(5).shape == (5,) and moved.new(5).is_cuda
assert torch.cuda.LongTensor([1, 2]).tolist() == [1, 2] and torch.cuda.HalfTensor(torch.Size([2])).shape == (2,)
assert torch.cuda.FloatTensor(numpy.zeros((4, 5))).fill_(1.0).shape == (4, 5)
assert torch.cuda.FloatTensor(64, 1).is_cuda and torch.cuda.FloatTensor().numel() == 0
torch.set_default_tensor_type(torch.cuda.DoubleTensor)
made = torch.zeros(2)
torch.set_default_tensor_type("torch.FloatTensor")
assert made.is_cuda and made.dtype == torch.float64 and torch.zeros(2).is_cpu
assert not torch._GLOBAL_DEVICE_CONTEXT.device_context, "a mode that makes each later tensor a call more"
"""
    moved = ".type(torch.cuda.FloatTensor)\n" + text
    assert play(tmp_path, loop(moved)).parts["parameters"] == 4 * (2 * 256 * 1024 + 1024 + 256)


def test_an_empty_cache_is_given_back_where_the_script_does(tmp_path):
    before = "big = torch.empty(64, 2**20, device='cuda')\ndel big\n"
    emptied = before + "torch.cuda.empty_cache()\nassert not torch.cuda.memory_reserved()\n"
    kept, empty = (play(tmp_path, loop().replace("model = ", first + "model = ")) for first in (before, emptied))
    assert kept.reserved_bytes > empty.reserved_bytes >= 256 * MIB, "the weights found no room in what was cached"
    assert kept.tensor_bytes == empty.tensor_bytes < 64 * MIB, "the peak of tensors is that of a step"


def test_bare_parameters_are_weights(tmp_path):
    bare = "w = nn.Parameter(torch.randn(256, 256, device='cuda'))\n"
    text = bare + loop().replace("model.parameters()", "[w]").replace("model(x)", "(x @ w)")
    text = "import torch, torch.nn as nn\n" + text
    assert play(tmp_path, text).parts["parameters"] == 4 * 256 * 256
    found = play(tmp_path, loop(moved="").replace(".to(device)", ""))
    assert found.peak_phase is None and any(
        note.startswith("nothing of the step is on the GPU") for note in found.notes
    )


def test_meta_tensors_stay_what_they_are_and_are_not_on_the_gpu(tmp_path):
    """Lightning counts FLOPs on them, and litgpt reads a file by them."""
    meta = """
    shapes = nn.Linear(256, 4096, device="meta")
    shapes(torch.randn(4, 256, device="meta")).sum().backward()
    assert shapes.weight.grad.is_meta
    file = torch.empty(0, device="meta").set_(torch.UntypedStorage(4096, device="meta"), 0, (32, 32), (32, 1))
    assert file.shape == (32, 32)
    """
    text = loop(after="if step == 0:" + textwrap.indent(textwrap.dedent(meta), " " * 8))
    assert play(tmp_path, text).parts == play(tmp_path, loop()).parts


def test_weights_take_no_memory_here(tmp_path):
    """40 GB of fp32 weights, built on the host and moved."""
    text = loop().replace("256, 1024", "256, 20_000_000").replace("1024, 256", "20_000_000, 256")
    found = play(tmp_path, text)
    assert found.parts["parameters"] > 40e9 and found.verdict == "does not fit" and found.left_bytes < 0


QUANTISED = """
import torch, transformers
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
sizes = dict(hidden_size=512, intermediate_size=1024, num_hidden_layers=2, num_attention_heads=4, vocab_size=512)
transformers.LlamaConfig(**sizes, num_key_value_heads=4, dtype="bfloat16").save_pretrained("base")
bits = transformers.BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True)
model = transformers.AutoModelForCausalLM.from_pretrained("base", quantization_config=bits, device_map="auto")
model = get_peft_model(prepare_model_for_kbit_training(model), LoraConfig(r=8, target_modules="all-linear"))
optimizer = torch.optim.AdamW([weight for weight in model.parameters() if weight.requires_grad])
while True:
    ids = torch.zeros(2, 64, dtype=torch.long, device="cuda")
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_a_quantised_checkpoint_without_weights(tmp_path):
    pytest.importorskip("bitsandbytes")
    from legroom.third_party.bitsandbytes_private import own_code_tables

    with own_code_tables():  # which bitsandbytes keeps for the process, on the first device that asks
        found = play(tmp_path, QUANTISED)
    linear = 2 * (4 * 512**2 + 3 * 512 * 1024)
    adapters, wide = 2 * 4 * 8 * (4 * 2 * 512 + 3 * 1536), 4 * (2 * 512 * 512 + 5 * 512)  # all in fp32
    weights = linear / 2 + linear / 64 + adapters + wide + 2 * 512 * 1024  # the last: one at a time in 16 bits
    assert found.parts["parameters"] == pytest.approx(weights, rel=0.02)
    assert found.parts["optimizer"] == pytest.approx(2 * adapters, rel=0.02)
    assert any("no weights" in note for note in found.notes)


VALIDATES = """
loss_of = nn.MSELoss()
def validate():
    model.eval()
    with torch.no_grad():
        for _ in range(9):
            loss_of(model(torch.randn(64, 256, device="cuda")), torch.zeros(64, 256, device="cuda"))
    model.train()
"""


def test_evaluations_count_in_memory_not_in_time(tmp_path):
    """That of a script which evaluates before its first step, too, may be in every step."""
    plain = play(tmp_path, loop())
    text = loop(after="if step == 0: validate()").replace("for step", VALIDATES + "for step")
    found, always = play(tmp_path, text), play(tmp_path, text.replace("for step", "validate()\nfor step"))
    assert found.step_seconds == pytest.approx(plain.step_seconds, rel=0.05) and found.model_flops == plain.model_flops
    assert any(
        f"script.py:{n}: an evaluation after" in note and "not in" in note for note in found.notes for n in (11, 12)
    )
    assert always.step_seconds > 1.5 * plain.step_seconds and any("step is in its" in note for note in always.notes)
    assert not any("evaluation after" in note for note in plain.notes)


COPY = "out = model(x); ema = ema or __import__('copy').deepcopy(model); rows = rows or [torch.randn_like(x)] * 9"


@pytest.mark.parametrize(
    "after, grows",
    [
        ("kept.append(out)", True),
        ("kept.append(out.detach())", True),
        ("kept.append(loss); total = total + loss", False),  # a number, and the backward pass has freed the rest
        (COPY, False),
    ],
)
def test_what_each_step_leaves_alive_is_noted(tmp_path, after, grows):
    """What is made once, behind the first step, is not: a copy of the weights."""
    text = loop(after=after).replace("model(x).square()", "(out := model(x)).square()").replace("64, 256", "8192, 256")
    found = play(tmp_path, text.replace("for step", "total, kept, ema, rows = 0, [], None, None\nfor step"))
    assert [note for note in found.notes if note.startswith("memory grew by 8 MiB in the last step")] == [
        *found.notes[1:2]
    ] * grows


DDP = "import torch.distributed as dist\ndist.init_process_group('nccl')\n"
SHARDED = "; from torch.distributed.fsdp import fully_shard; fully_shard(model)"
REPLICATED = "; model = nn.parallel.DistributedDataParallel(model, device_ids=[0])"
OBJECTS = "dist.all_reduce(loss); all = [None] * 4; dist.all_gather_object(all, step); assert all == [step] * 4"


@pytest.mark.parametrize("wrapped, share", [(REPLICATED, 1), (SHARDED, 4)])
def test_rank_0_of_several(tmp_path, wrapped, share):
    text = DDP + loop(moved=".cuda()" + wrapped, after=f"{OBJECTS}; dist.barrier()")
    alone, found = play(tmp_path, loop()), play(tmp_path, text, ranks=4)
    assert found.parts["optimizer"] == pytest.approx(alone.parts["optimizer"] / share, rel=0.01)
    nccl = gpu_of(GPU).nccl_bytes
    assert found.device_used_bytes == found.reserved_bytes + found.context_bytes + nccl
    assert found.left_bytes == pytest.approx(found.capacity_bytes - found.device_used_bytes)
    assert found.step_seconds > alone.step_seconds
    assert not torch.distributed.is_initialized()


ROWS = """
from torch.utils.data import DataLoader
lengths = iter({lengths})
def collate(rows):
    return dict(ids=torch.zeros(4, next(lengths), dtype=torch.long), labels=torch.zeros(4, 900))
loader = iter(DataLoader(range(99), batch_size=4, collate_fn=collate))
"""


@pytest.mark.parametrize("lengths, said", [([57, 93, 60], "rows of 57 to 93 tokens"), ([64, 64], "")])
def test_rows_of_different_lengths_are_told(tmp_path, lengths, said):
    text = loop().replace("for step in", ROWS.format(lengths=lengths) + "for step in")
    notes = play(tmp_path, text.replace("x = ", "next(loader); x = ")).notes
    assert [said in note for note in notes if "longer rows" in note] == [True] * bool(said)


def test_a_data_loader_refuses_what_it_refuses_on_a_gpu(tmp_path):
    """Its rows are read without processes, whatever it was told of them."""
    text = loop().replace("for step in", "from torch.utils.data import DataLoader\nloader = {}\nfor step in")
    told = "DataLoader(range(9), {} persistent_workers=True, pin_memory=True)"
    workers = "num_workers=2, timeout=3, prefetch_factor=4, multiprocessing_context='spawn',"
    assert play(tmp_path, text.format(f"list({told.format(workers)})"))
    with pytest.raises(ValueError, match="persistent_workers option needs"):
        play(tmp_path, text.format(told.format("")))


# --- numbers that nobody computed -------------------------------------------------------------------


def test_comparisons_of_unknown_numbers_are_noted(tmp_path, capsys):
    after = """
    total = sum([loss.item(), float(loss)]) / 2
    print(f"{loss.item():.3f} {total:.1f}", int(loss.argmax()))
    if loss.item() < 1e9 or loss < 3 or loss.isnan().any() or not torch.isfinite(loss):
        raise SystemExit("decided")
"""
    found = play(tmp_path, loop(after=after.strip()))
    assert capsys.readouterr().out.startswith("1.000")
    assert [note for note in found.notes if "script.py:14 decides" in note]


@pytest.mark.parametrize(
    "after, why",
    [
        ("torch.zeros(int(loss.long().item()) + 4, device='cuda')[:loss.long().item()]", "only a run computes"),
        ("model(x[x[:, 0] > 0])", "depends on the values"),
        ("while not loss.item() < 0.1: pass", "a loop"),
    ],
)
def test_sizes_that_depend_on_values_and_loops_that_they_end_are_refused(tmp_path, after, why):
    with pytest.raises(Refusal, match="script.py:12") as refused:
        play(tmp_path, loop(after=after))
    assert why in str(refused.value)


def test_strictly_nothing_may_decide(tmp_path):
    with pytest.raises(Refusal, match="script.py:12: .*--strict"):
        play(tmp_path, loop(after="if loss.item() < 3: pass"), strict=True)


def test_what_decided_is_known_without_an_estimate():
    options, watch = {"gpus": {GPU: gpu_of(GPU)}, "margin": 0.03, "ranks": 1}, watch_of()
    with played_run.observe(options, watch) as found, watch.watching():
        assert not torch.randn(2, device="cuda").sum().item() > 3
    assert len(found().pop("decided")) == 1


# --- the command ------------------------------------------------------------------------------------


def test_the_command_says_its_verdict_and_its_exit_code(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "recipes"))
    (tmp_path / "script.py").write_text(loop(after="open('log', 'w').write('one step')"))
    monkeypatch.setattr(plots, "draw", lambda _: {})
    options = ["--gpu", "rtx4090_24gb,l4_24gb", "--budget", "100MiB", "--into", "out", "--json"]
    assert command.main([*options, "--", "script.py", "--lr", "1"]) == 3
    said = capsys.readouterr()
    assert "above --budget on NVIDIA L4: " in said.err and "100 MiB are allowed" in said.err
    found = json.loads(said.out)
    assert list(found) == ["rtx4090_24gb", "l4_24gb"] and found["l4_24gb"]["verdict"] == "fits"
    assert found["rtx4090_24gb"]["device_used_bytes"] > 100 * MIB
    assert {path.name for path in tmp_path.iterdir()} == {"script.py", "out"}
    made, other = (record_file.read(tmp_path / "out" / name) for name in found)
    assert made.memory.device_used_bytes == found["rtx4090_24gb"]["device_used_bytes"] == other.memory.device_used_bytes
    assert made.status == "ok" and made.estimate.largest and made.operations.groups
    assert made.program.typed == "script.py --lr 1" and (made.program.ended_by, made.program.exit_code) == (
        "legroom",
        None,
    )
    assert str(tmp_path) not in (tmp_path / "out" / "l4_24gb" / "result.json").read_text()
    shown = run_page.data(made, tmp_path / "out" / "rtx4090_24gb")
    assert shown["command"].endswith(f"{shlex.join(options)} -- script.py --lr 1")
    assert max(shown["step"]["timeline"]["blocks"]["bytes"]) == 4 * 256 * 1024 and shown["step"]["operations"]["rows"]
    table = screen_table.screen_text(report.compare([made, other]))
    assert "program=script.py --lr 1" in table and "l4_24gb" in table and (tmp_path / "out" / "page.html").exists()


@pytest.mark.slow
def test_the_scripts_own_error_is_shown_as_the_scripts(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "recipes"))
    (tmp_path / "script.py").write_text("import torch\ntorch.zeros(3, device='cuda') @ torch.zeros(4)\n")
    assert command.main(["--gpu", "rtx4090_24gb", "script.py"]) == 2
    said = capsys.readouterr().err
    assert "the script fails" in said and "script.py:2" in said
    assert command.main(["--gpu", "rtx4090", "script.py"]) == 2
    assert "rtx4090_24gb" in capsys.readouterr().err
    assert not torch.cuda.is_available(), "nothing of the played machine is left in this process"


def test_a_small_weight_of_a_checkpoint_can_be_factorised(tmp_path):
    """Adapters do so as they are made. Memory that nobody has filled may hold anything."""
    text = """
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel
    torch.use_deterministic_algorithms(True)  # fills such memory with NaN
    GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=1, n_head=2, vocab_size=64)).save_pretrained("here")
    order = torch.get_rng_state()
    model = GPT2LMHeadModel.from_pretrained("here")
    assert torch.equal(torch.get_rng_state(), order), "another order of rows than a run has"
    torch.use_deterministic_algorithms(False)
    torch.linalg.svd(model.transformer.h[0].attn.c_attn.weight.detach())
    optimizer = torch.optim.SGD(model.cuda().parameters())
    while True:
        model(torch.zeros(1, 8, dtype=torch.long, device="cuda")).logits.mean().backward()
        optimizer.step()
    """
    assert play(tmp_path, text).tensor_bytes
