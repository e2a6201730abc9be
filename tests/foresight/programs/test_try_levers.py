"""What `legroom check --try` finds to change in a script, what each change does to it, and which of them are chosen."""

from __future__ import annotations

import dataclasses
import json

import pytest
from conftest import ROOT
from played_scripts import ROWS, play
from test_played_scripts import loop

from legroom import Refusal
from legroom.cli import check as command
from legroom.cli import check_levers
from legroom.foresight.programs import check, program_record, try_levers
from legroom.foresight.programs.command import Program
from legroom.foresight.step_estimate import StepEstimate, gpu_of
from legroom.machine import host
from legroom.records.record import Error, Estimate, Record
from legroom.units import MIB, PARTS

ARGUMENTS = {
    "class": "SFTConfig",
    "bf16": False,
    "fp16": False,
    "gradient_checkpointing": False,
    "optim": "adamw_torch",
    "per_device_train_batch_size": 6,
    "gradient_accumulation_steps": 2,
}
TRAINER = (
    """
import sys, torch
from transformers import GPT2Config, GPT2LMHeadModel, HfArgumentParser, Trainer, TrainingArguments

"""
    + ROWS.format(length=128)
    + """
if len(sys.argv) > 1:
    (arguments,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
else:
    arguments = TrainingArguments("out", report_to="none", optim="adamw_torch")
config = GPT2Config(n_embd=256, n_layer=4, n_head=4, vocab_size=512, n_positions=128, attn_implementation="eager")
Trainer(model=GPT2LMHeadModel(config), args=arguments, train_dataset=Rows()).train()
"""
)
PLAIN = """
import torch
from transformers import GPT2Config, GPT2LMHeadModel
config = GPT2Config(n_embd=256, n_layer=4, n_head=4, vocab_size=512, n_positions=128, attn_implementation="eager")
model = GPT2LMHeadModel(config).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
while True:
    ids = torch.zeros(8, 128, dtype=torch.long, device="cuda")
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def typed(**values):
    return {name: {"flag": f"--{name}", "value": value, "alone": False} for name, value in values.items()}


# --- what there is to change ------------------------------------------------------------------------


def levers(gpu="rtx4090_24gb", **facts):
    return [try_levers.Trial([one], None).typed for one in try_levers.levers_of(facts, gpu_of(gpu))]


def test_arguments_are_typed_or_written_as_keywords():
    flags = typed(**ARGUMENTS, dtype="float32", use_peft=False, load_in_4bit=False)
    found = levers(arguments=ARGUMENTS, typed=flags, model={"attention": "eager", "checkpointing": False})
    assert found == [
        "--bf16 true",
        "--optim adamw_torch_fused",
        'from_pretrained(..., attn_implementation="sdpa")',
        "--gradient_checkpointing true",
        *(f"--per_device_train_batch_size {size} --gradient_accumulation_steps {12 // size}" for size in (3, 2, 1)),
        "--optim adamw_bnb_8bit",
        "--optim adafactor",
        "--dtype bfloat16",
        "--use_peft true",
        "--use_peft true --load_in_4bit true",
    ]
    found = levers("v100_16gb", arguments=ARGUMENTS | {"optim": "sgd", "gradient_checkpointing": True})
    assert found[:2] == [
        "SFTConfig(..., fp16=True)",
        "SFTConfig(..., per_device_train_batch_size=3, gradient_accumulation_steps=4)",
    ]


def test_code_that_makes_its_own_optimizer_is_named_by_its_calls():
    optimizer = {"name": "Adam", "plain": True, "fused": False}
    model = {"attention": "sdpa", "checkpointing": False}
    assert levers(optimizers=[optimizer], accelerator={"mixed_precision": "no"}, model=model) == [
        'Accelerator(..., mixed_precision="bf16")',
        "torch.optim.Adam(..., fused=True)",
        "model.gradient_checkpointing_enable()",
        "bitsandbytes.optim.Adam8bit(...)",
        "transformers.Adafactor(..., scale_parameter=False, relative_step=False)",
    ]
    flags = {"gradient_checkpointing": {"flag": "--gradient_checkpointing", "value": False, "alone": True}}
    assert levers(typed=flags, model=model) == ["--gradient_checkpointing"]
    assert levers(optimizers=[{"name": "Lion", "plain": False, "fused": False}]) == []


# --- what the changes do ----------------------------------------------------------------------------


def test_a_trainer_script_is_seen_and_changed(tmp_path):
    """One process, so that its imports are shared."""
    before = play(tmp_path, TRAINER, changes={})
    facts = before.facts
    assert facts["arguments"]["class"] == "TrainingArguments" and facts["arguments"]["optim"] == "adamw_torch"
    assert facts["model"] == {"attention": "eager", "checkpointing": False} and "typed" not in facts
    assert facts["optimizers"] == [{"name": "AdamW", "plain": True, "fused": False}]
    arguments = {"gradient_checkpointing": True, "optim": "adafactor", "per_device_train_batch_size": 4, "bf16": True}
    after = play(tmp_path, TRAINER, changes={"arguments": arguments, "model": {"attention": "sdpa"}})
    assert after.facts["model"] == {"attention": "sdpa", "checkpointing": True}
    assert after.parts["optimizer"] < before.parts["optimizer"] / 50
    assert after.parts["activations"] < before.parts["activations"] / 4
    same = ["--output_dir", "out", "--report_to", "none", "--optim", "adafactor", "--gradient_checkpointing", "true"]
    flags = play(tmp_path, TRAINER, *same, "--bf16", "true", "--per_device_train_batch_size", "4", changes={})
    assert flags.facts["typed"]["per_device_train_batch_size"]["value"] == 4
    values = {"arguments": arguments}
    assert flags.parts == play(tmp_path, TRAINER, changes=values).parts, "as if it had been typed"


def test_an_evaluation_behind_a_step_is_counted(tmp_path):
    text = TRAINER.replace("train_dataset=Rows()", "train_dataset=Rows(), eval_dataset=Rows()")
    text = text.replace('optim="adamw_torch"', 'optim="adamw_torch", per_device_eval_batch_size=64')
    without, evaluated = (play(tmp_path, text, changes={"arguments": each}) for each in ({}, try_levers.EVALUATING))
    logits = 4 * 64 * 128 * 512
    assert evaluated.reserved_bytes - without.reserved_bytes > logits
    assert evaluated.parts["optimizer"] == without.parts["optimizer"]
    made = Record("estimate", [], {}, "", {}, estimate=Estimate(True, without.left_bytes, 1, "fits"))
    fields = {each.name: getattr(evaluated, each.name) for each in dataclasses.fields(StepEstimate)}
    for left, verdict in ((evaluated.left_bytes, "fits"), (-5, "does not fit")):
        program_record.enter_evaluation(made, StepEstimate(**fields | {"left_bytes": left, "verdict": verdict}))
        stays = left if verdict != "fits" else without.left_bytes
        assert (made.estimate.margin_bytes, made.estimate.verdict) == (stays, verdict)
        assert (made.error is None) == (left > 0) and len(made.warnings) == 1 + (left < 0)
    first = check.Checked(Program("file", "train.py", []), None, {}, facts={"arguments": None})
    with pytest.raises(Refusal, match="no TrainingArguments"):
        try_levers.evaluated(first, check.Settings())


@pytest.mark.parametrize("kind, share", [("fused", 1), ("8bit", 0.26), ("adafactor", 0.0037)])
def test_the_optimizer_of_a_loop_is_another(tmp_path, kind, share):
    before, after = (play(tmp_path, loop(), changes=changes) for changes in ({}, {"optimizer": {"kind": kind}}))
    assert after.parts["optimizer"] == pytest.approx(share * before.parts["optimizer"], rel=0.1)
    assert after.facts["optimizers"][0]["fused"] == (kind == "fused")


def test_an_optimizer_that_is_derived_from_adam_stays_what_it_is(tmp_path):
    own = "class Own(torch.optim.AdamW): pass\noptimizer = Own("
    text = loop().replace("optimizer = torch.optim.AdamW(", own)
    before, after = (play(tmp_path, text, changes=changes) for changes in ({}, {"optimizer": {"kind": "adafactor"}}))
    assert after.parts == before.parts
    assert after.facts["optimizers"] == [{"name": "Own", "plain": False, "fused": False}]


def test_checkpointing_of_a_loop(tmp_path):
    before, after = (play(tmp_path, PLAIN, changes=one) for one in ({}, {"model": {"checkpointing": True}}))
    assert before.facts["model"]["checkpointing"] is False
    assert after.parts["activations"] < before.parts["activations"] / 4 and after.step_seconds > before.step_seconds


# --- which are chosen -------------------------------------------------------------------------------


@pytest.fixture
def memory(monkeypatch):
    """memory(function): a script takes so many MiB and seconds with a set of what is typed, on a card of 1,000."""
    runs = []

    def given(takes, **settings):
        def checked(program, gpu, settings, chosen):
            names = {one.typed.removeprefix("--").partition(" ")[0] for one in chosen}
            batch = next((int(one.argv[1]) for one in chosen if one.group == "batch"), 8)
            runs.append(names)
            mib, seconds = takes(names, batch)
            if mib is None:
                return check.Checked(program, None, {}, why="it fails")
            fields = {one.name: 0 for one in dataclasses.fields(StepEstimate)}
            fields |= {
                "notes": (),
                "parts": dict.fromkeys((part for _, part in PARTS), 0),
                "verdict": "fits" if mib <= 1000 else "does not fit",
                "capacity_bytes": 1000 * MIB,
            }
            fields |= {"device_used_bytes": mib * MIB, "step_seconds": seconds}
            return check.Checked(
                program, None, {"": StepEstimate(**fields)}, facts=facts, gpus={"": gpu_of("rtx4090_24gb")}
            )

        facts = {"arguments": ARGUMENTS | {"per_device_train_batch_size": 8}}
        facts["typed"] = typed(**facts["arguments"], use_peft=False)
        monkeypatch.setattr(try_levers, "checked", checked)
        monkeypatch.setattr(host, "has", lambda _: False)
        program = Program("file", "train.py", [])
        first = checked(program, None, None, [])
        found = try_levers.tried(check.Settings(**settings), first, lambda _: None)
        assert len(runs) == len({frozenset(one) for one in runs}) or "per_device_train_batch_size" in str(runs)
        return found

    return given


def test_what_fits_already_is_made_faster_alone(memory):
    found = memory(lambda names, _: (900, 1 - 0.2 * ("bf16" in names) + 0.3 * ("gradient_checkpointing" in names)))
    assert found.together.typed == "--bf16 true" and found.together.estimate.step_seconds == 0.8
    assert memory(lambda *_: (900, 1.0)).together is None
    assert "fits as it is" in check_levers.text_of(memory(lambda *_: (900, 1.0)))
    more = memory(lambda names, _: (900 + 50 * ("bf16" in names), 1 - 0.2 * ("bf16" in names)))
    assert more.together.typed == "--bf16 true"
    assert memory(lambda names, _: (900 + 200 * ("bf16" in names), 1 - 0.2 * ("bf16" in names))).together is None


def test_above_the_budget_nothing_fits(memory):
    found = memory(lambda names, _: (900 - 200 * ("use_peft" in names), 1.0), budget=800 * MIB)
    assert not found.fits and found.together.fits and found.together.typed == "--use_peft true"
    assert "it fits with  --use_peft true" in check_levers.text_of(found)


def test_the_least_that_fits_is_taken(memory):
    def takes(names, batch):
        layers = 100 if "gradient_checkpointing" in names else 800
        states = 0 if "use_peft" in names else 100 if "optim" in names else 500
        return 300 + layers * batch / 8 + states, 1 + 0.3 * ("gradient_checkpointing" in names) + 0.1 * (8 / batch)

    found = memory(takes)  # 1600 as it is, 900 with checkpointing
    assert found.together.typed == "--gradient_checkpointing true" and found.together.fits
    text = check_levers.text_of(found)
    assert "it fits with  --gradient_checkpointing true" in text and "-700 MiB" in text
    error = Error("step", "PredictedOutOfMemory", "600 MiB are missing.")
    made = Record("estimate", [], {}, "", {}, error=error, estimate=Estimate(False, -600, 1000))
    check_levers.enter(found, made)
    rows = {row["words"]: row.get("saved_bytes") for row in made.estimate.levers}
    assert rows["--gradient_checkpointing true"] == 700 * MIB and error.hint.endswith("--gradient_checkpointing true")


def test_a_smaller_batch_is_as_large_as_possible(memory):
    def takes(names, batch):
        return 400 + 150 * batch + 100 * ("use_peft" not in names), 1 + 1 / batch

    assert memory(takes).together.typed == "--per_device_train_batch_size 2 --gradient_accumulation_steps 8"


@pytest.mark.parametrize("seconds,taken", [(0.3, "batch_size 2"), (0.001, "gradient_checkpointing")])
def test_a_smaller_batch_may_beat_checkpointing(memory, seconds, taken):
    def takes(names, batch):  # 2100 as it is; with both levers 900, with half the batch again 600
        recomputes = "gradient_checkpointing" in names
        return 100 + (200 if recomputes else 250) * batch, 1 + seconds * recomputes + 0.1 / batch

    found = memory(takes).together
    assert taken in found.typed and len(found.levers) == (1 if "batch" in taken else 2)


def test_where_nothing_fits_that_is_said(memory):
    found = memory(lambda names, _: (4000 - 100 * len(names), 1.0))
    assert not found.together.fits and "nothing that was tried fits" in check_levers.text_of(found)


def test_a_lever_that_fails_saves_nothing_and_the_others_are_taken(memory):
    def takes(names, batch):
        return (None if "gradient_checkpointing" in names else 1100 - 200 * ("use_peft" in names)), 1.0

    found = memory(takes)
    assert found.together.typed == "--use_peft true"
    assert [trial.why for trial in found.alone if trial.estimate is None] == ["it fails"]


@pytest.mark.slow
def test_the_command_tries_a_script_until_it_fits(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "recipes"))
    large = loop().replace("256, 1024", "256, 900_000").replace("1024, 256", "900_000, 256")
    (tmp_path / "script.py").write_text(large)
    assert command.main(["--gpu", "rtx4060_8gb", "--try", "--json", "--", "script.py"]) == 3  # as it is
    found = json.loads(capsys.readouterr().out)
    assert found["rtx4060_8gb"]["verdict"] == "does not fit" and found["tried"]["together"]["verdict"] == "fits"
    assert "Adam" in found["tried"]["together"]["words"]
