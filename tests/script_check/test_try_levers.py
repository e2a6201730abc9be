"""What `legroom check --try` finds to change in a script, and which of the changes are chosen."""

from __future__ import annotations

import dataclasses

import pytest

from legroom.cli import check_levers
from legroom.estimator.cards import gpu_of
from legroom.estimator.step_estimate import StepEstimate
from legroom.machine import host
from legroom.records.record import Error, Estimate, Record
from legroom.script_check import check, try_levers
from legroom.script_check.command import Program
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
