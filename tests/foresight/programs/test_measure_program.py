"""`legroom measure`: the live tensors of a script's second step, and what may be given to others."""

import json
from dataclasses import asdict
from importlib import metadata

import pytest
import torch
from played_scripts import Enough, watch_of
from transformers import LlamaConfig, LlamaForCausalLM

import legroom
from legroom.cli import check as check_command
from legroom.cli import measure as measure_command
from legroom.errors import Refusal
from legroom.foresight.programs import measured, played_cpu, process
from legroom.foresight.programs.measure import SharedRecord

WIDTH, ROWS = 64, 32
SCRIPT = f"""
import sys
import torch
model = torch.nn.Sequential(torch.nn.Linear({WIDTH}, {WIDTH}, bias=False), torch.nn.ReLU())
optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
rows = torch.randn({ROWS}, {WIDTH})
for _ in range(int(sys.argv[1])):
    for _ in range(2):
        model(rows).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def train(watch):
    """The loop of SCRIPT with a model large enough to be without data where it is predicted."""
    wide = 320
    model = torch.nn.Sequential(torch.nn.Linear(wide, wide), torch.nn.GELU(), torch.nn.Linear(wide, wide))
    optimizer = torch.optim.AdamW(model.parameters())
    rows = torch.randn(16, wide)
    finite = torch.isfinite(rows[0])  # whose values are assumed where it is predicted
    while finite is not None:
        loss = torch.nn.functional.mse_loss(model(rows), rows)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def train_on_its_own_answers(watch):
    """As distillation and reinforcement learning do. No row may end early."""
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(**sizes, vocab_size=2000, eos_token_id=None, pad_token_id=0))
    optimizer = torch.optim.SGD(model.parameters())
    prompts = torch.full((8, 5), 7)
    while True:
        rows = model.generate(prompts, attention_mask=torch.ones_like(prompts), max_new_tokens=4, do_sample=False)
        model(rows, labels=rows).loss.backward()
        optimizer.step()


def train_recurrent(watch):
    """oneDNN's workspace of an LSTM is larger than all else, and a GRU lays its result out anew."""
    layers = torch.nn.ModuleList([torch.nn.LSTM(160, 160, batch_first=True), torch.nn.GRU(160, 160, batch_first=True)])
    optimizer = torch.optim.SGD(layers.parameters())
    rows = torch.randn(40, 12, 160)
    while True:
        found = rows
        for layer in layers:
            found = layer(found)[0]
            assert found.shape == rows.shape
        found.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("train", [train, train_on_its_own_answers, train_recurrent])
def test_the_bytes_of_a_run_are_those_that_are_predicted(train):
    found = []
    for observe in (measured.observe, played_cpu.observe):
        watch = watch_of(measured.OBSERVED)
        with watch.watching(), observe({}, watch) as finish:
            with pytest.raises(Enough):
                train(watch)
            found.append(finish())
    real, predicted = found
    assert predicted["tensor_bytes"] == real["peak_tensor_bytes"] > 2 * real["parameters_bytes"] > 0
    for part in ("parameters", "gradients", "optimizer", "activations", "other"):
        assert predicted[f"{part}_bytes"] == real[f"{part}_bytes"], part


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize(
    "move", [lambda x: x.cuda(), lambda x: x.to("cuda"), lambda x: x.new_empty(1, device="cuda:0")]
)
def test_a_script_that_asks_for_cuda_fails_without_it_as_it_would(move):
    watch = watch_of(measured.OBSERVED)
    with watch.watching(), played_cpu.observe({}, watch), pytest.raises((AssertionError, RuntimeError), match="CUDA"):
        move(torch.empty(320, 320))


def test_a_data_loader_reads_in_processes_of_its_own():
    """The first argument of its processes is a number, and none of them trains."""
    watch = watch_of(measured.OBSERVED)
    with watch.watching(), played_cpu.observe({}, watch) as finish, pytest.raises(Enough):
        model = torch.nn.Linear(8, 8)
        optimizer = torch.optim.SGD(model.parameters())
        for rows in torch.utils.data.DataLoader(torch.zeros(64, 8), num_workers=1, multiprocessing_context="fork"):
            model(rows).sum().backward()
            optimizer.step()
    assert finish()["tensor_bytes"]


def test_a_process_that_a_script_spawns_is_measured_here():
    watch = watch_of(measured.OBSERVED)
    with watch.watching(), measured.observe({}, watch) as finish:
        with pytest.raises(Enough):
            torch.multiprocessing.spawn(lambda rank, watch: train(watch), (watch,))
        assert finish()["peak_tensor_bytes"]
        with pytest.raises(Refusal, match="starts 2 processes, and one is measured"):
            torch.multiprocessing.spawn(train, (watch,), nprocs=2)


@pytest.fixture
def script(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path


@pytest.mark.slow
def test_what_a_step_takes_is_counted_and_given_away(script, capsys, monkeypatch):
    """In a checkout that pip has not installed, too, of which Python's metadata knows no version."""
    monkeypatch.setattr(
        metadata, "version", lambda name, of=metadata.version: of(name.replace("legroom", "not-installed"))
    )
    assert measure_command.main(["--share", "record.json", "--steps", "5", "--json", "--", "train.py", "9"]) == 0
    found = json.loads(capsys.readouterr().out)
    weight, rows = 4 * WIDTH * WIDTH, 4 * ROWS * WIDTH
    assert (found["steps"], len(found["step_seconds"]), found["peak_phase"]) == (5, 2, "step")
    assert (found["parameters_bytes"], found["gradients_bytes"]) == (weight, weight)
    assert found["optimizer_bytes"] == 2 * weight + 4  # two moments, and the count of steps
    assert found["peak_tensor_bytes"] == 4 * weight + 4 + rows + 2 * weight  # AdamW's update has two of its own
    assert found["parameters"] == WIDTH * WIDTH
    record = SharedRecord(**json.loads((script / "record.json").read_text()))
    assert record.legroom == legroom.__version__
    assert record.measured["tensor_bytes"] == found["peak_tensor_bytes"]
    of_tensors = {name: value for name, value in record.measured.items() if value and name != "step_seconds"}
    assert record.predicted and {name: record.predicted[name] for name in of_tensors} == of_tensors
    text = json.dumps(asdict(record))
    assert str(script) not in text and "train" not in text.replace("trained_parameters", "")


@pytest.mark.parametrize("code, why", [(0, "let it train longer"), (2, "by itself, with exit code 2, after 1")])
@pytest.mark.parametrize(
    "command, typed",
    [(measure_command, []), (check_command, ["--device", "cpu"]), (check_command, ["--gpu", "t4_16gb"])],
)
def test_too_few_steps_are_said_with_the_end_of_the_output(script, capsys, monkeypatch, command, typed, code, why):
    ended = process.Outcome(process.ENDED, {"steps": 1}, exit_code=code, steps=1, output="the end of its output")
    monkeypatch.setattr(process, "run", lambda *_: ended)
    assert command.main([*typed, "train.py", "1"]) == 2
    said = capsys.readouterr().err
    assert "after 1 optimizer steps" in said and "the end of its output" in said and why in said


def test_a_command_line_that_names_nothing_to_measure_is_refused(script):
    assert measure_command.main(["--steps", "1", "train.py", "9"]) == 2
    assert measure_command.main(["missing.py"]) == 2


def test_a_refusal_stands_alone(script, capsys, monkeypatch):
    ended = process.Outcome(process.REFUSED, error="sizes are values", output="a library's warning")
    monkeypatch.setattr(process, "run", lambda *_: ended)
    assert check_command.main(["--gpu", "t4_16gb", "train.py", "1"]) == 2
    said = capsys.readouterr().err
    assert "no verdict: sizes are values" in said and "warning" not in said
