"""Made-up sweeps, each with the cases that a table tells apart. Their texts are kept beside tests/report."""

from __future__ import annotations

from typing import Any

from made_up_records import OOM, job

from legroom.records.record import DOES_NOT_FIT, FITS, TIGHT, Error, Estimate, Evaluation, Operations, Record
from legroom.units import GIB, MIB


def numbered(records: list[Record]) -> list[Record]:
    """The records in this order, and with keys that no change of a menu changes."""
    for number, found in enumerate(records):
        found.environment.setdefault("job_number", number)
        found.config_key = f"{number:012x}"
    return records


def measured() -> list[Record]:
    """Runs of every status on a card, with repeats, notes and scores."""
    card: dict[str, Any] = dict(device="cuda", device_name="Card A")
    made = [
        job("optim=adamw", speed=10.0, memory=1500 * MIB, **card),
        job("optim=adamw", "measure.repeat=1", "train.seed=1", speed=11.0, memory=1600 * MIB, **card),
        job("optim=sgd", speed=12.5, memory=900 * MIB, **card),
        job("optim=lion", speed=10.6, memory=1550 * MIB, jobs_at_once=2, **card),
        job("optim=adafactor", status="oom", error=OOM, **card),
        job("optim=adafactor", "measure.repeat=1", status="oom", error=OOM, **card),
        job("optim=muon", status="killed", error=Error("forward", "Killed", "SIGKILL"), **card),
        job("optim=rmsprop", status="refused", error=Error("load", "Refusal", "Is it this?\nNo.", "Type that.")),
        job("optim=adagrad", status="failed", error=Error("step", "ValueError", "", None), **card),
        job("optim=ademamix", speed=14.0, memory=1700 * MIB, **card),
        job("optim=paged_adamw", status="timeout", error=Error("step", "Timeout", "60 seconds are over."), **card),
        job("optim=stable_adamw", speed=13.0, memory=2000 * MIB, **card),
        job("optim=lion8bit", status="oom", error=OOM, **card),  # for the reason of another
    ]
    made[2].evaluation = Evaluation(4, 0.25, 0.75, 1.284, 0.1, f1=0.5, exact_match=0.125, pearson=-0.25)
    made[2].training.resumed_from_step = 7
    made[2].speed.evaluation_seconds = 0.3  # between the steps; the last one's is in the evaluation
    made[3].training.resumed_from_step = 0
    made[9].status = "preempted"
    made[9].speed.measured_steps = 4
    made[11].memory.peak_tensor_bytes = made[11].memory.device_used_bytes = None  # only the reserved bytes are known
    made[11].speed.samples_per_second = None
    made[2].operations = Operations("cuda", [{"group": "contractions", "seconds": 0.5}, {"group": "copies"}])
    return numbered(made)


def predicted(host: int = 1) -> list[Record]:
    """Estimates of one training for several cards, the last of which wait for the host."""
    verdicts = [
        ("t4_16gb", 4.13, Estimate(False, -2 * GIB, 14 * GIB, DOES_NOT_FIT, GIB)),
        ("l4_24gb", 9.5, Estimate(False, GIB // 4, 22 * GIB, TIGHT, GIB)),
        ("a100_40gb", 41.0, Estimate(True, 20 * GIB, 39 * GIB, FITS, GIB)),
        ("h100_80gb", 87.0, Estimate(True, 60 * GIB, 79 * GIB, FITS, GIB)),
        ("h200_141gb", 88.0, Estimate(True, 120 * GIB, 139 * GIB)),
    ]
    made = []
    for n, (gpu, speed, estimate) in enumerate(verdicts):
        found = job("recipe=estimate", f"gpu={gpu}", speed=speed, memory=18 * GIB, device="cuda", device_name=gpu)
        found.estimate, found.status = estimate, "oom" if n == 0 else "ok"
        found.speed.bound_by = "host" if n >= len(verdicts) - host else "arithmetic"
        found.speed.step_seconds_median, found.speed.tokens_per_second = 3 / speed, 100 * speed
        found.speed.step_seconds_low, found.speed.step_seconds_high = 2.4 / speed, 6 / speed
        found.config["gpu"]["price_per_hour"] = 0.5 + n
        made.append(found)
    return numbered(made)


def mixed() -> list[Record]:
    """An estimate beside the run that it predicts, and options that mean the same."""
    estimate, run = predicted()[2], job("optim=sgd", device="cuda", device_name="a100_40gb", speed=40.0)
    twins = [job("optim=lion", device="cuda", device_name="a100_40gb", speed=speed) for speed in (42.0, 43.0)]
    for found, typed in zip(twins, ("auto", "sdpa")):
        found.overrides = ["optim=lion", f"++model.attention={typed}", f"train.seed={len(typed)}"]
    return numbered([run, estimate, *twins])


def named_by_what_differs() -> list[Record]:
    """Jobs that differ in more keys than a table has columns for; none of them is different in speed."""
    typed = [
        "precision=bf16",
        "optim=sgd",
        "checkpointing=full",
        "accumulation=x2",
        "batch.per_device=2",
        "compile=true",
        "train.epochs=2",
    ]
    return numbered([job(), *(job(each, speed=10.1) for each in typed), job(*typed[:2], speed=9.9)])


def guided() -> list[Record]:
    """Two experiments of the guide, one that it does not have, and a key that is in no experiment."""
    card: dict[str, Any] = dict(device="cuda", device_name="Card B")
    x4 = ("accumulation=x4", "batch.per_device=1")
    made = [
        job(memory=14000 * MIB, speed=8.0, overrides=["+experiment/guide=vanilla"], **card),
        job(*x4, memory=8000 * MIB, speed=7.7, overrides=["+experiment/guide=accumulation"], **card),
        job("precision=bf16", memory=9000 * MIB, speed=9.0, overrides=["+experiment/guide=vanilla"], **card),
        job("optim=sgd", memory=7000 * MIB, speed=9.5, overrides=["++experiment=of_mine"], **card),
    ]
    made[1].environment |= {"git_revision": "def", "versions": {"torch": "2.12.0", "transformers": "5.20"}}
    return numbered(made)


def alone() -> list[Record]:
    """One run, which differs from nothing."""
    return numbered([job(memory=300 * MIB)])


def none_ended() -> list[Record]:
    """No job has figures."""
    return numbered([job(status="oom", error=OOM), job("precision=bf16", status="interrupted")])


SWEEPS = {
    each.__name__: each for each in (measured, predicted, mixed, named_by_what_differs, guided, alone, none_ended)
}
