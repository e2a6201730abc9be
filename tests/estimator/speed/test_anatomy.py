"""The anatomy of a step: every operation in one group, seconds that sum to the prediction, and the measured one."""

from __future__ import annotations

from collections import Counter

import pytest
from conftest import compose, small

from legroom.estimator.speed import anatomy, roofline
from legroom.estimator.speed.operation_names import COLLECTIVE, ELEMENTWISE, HOST_COPY, MATMUL, REDUCTION
from legroom.estimator.speed.operations import Operation, Tally
from legroom.estimator.speed.summary import OPERATION_GROUPS
from legroom.foresight import simulation
from legroom.records import step_file

V100 = ["recipe=estimate", "gpu=v100_16gb", "device=auto"]


def sums(operations, key, of="seconds"):
    found = {}
    for row in operations.groups:
        found[row[key]] = found.get(row[key], 0) + row[of]
    return found


# --- predicted ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def simulated(tmp_path_factory):
    cfg, outcome, problems = compose(*small(*V100, "model.layers=3", "accumulation=x4", "precision=fp16"))
    assert not problems
    seen = simulation.simulate_step(cfg, str(tmp_path_factory.mktemp("a")), 10**12, record_origins=True)
    return cfg, seen, anatomy.predicted(seen.tally, cfg.gpu, cfg.precision.kind, 1)


def test_the_groups_sum_to_the_predicted_seconds(simulated):
    cfg, seen, made = simulated
    whole = roofline.predict(seen.tally, cfg.gpu, cfg.precision.kind)
    assert sum(sums(made.summary, "phase").values()) == pytest.approx(whole.device_seconds)
    calls = sum(times for counts in seen.tally.counts.values() for times in counts.values())
    assert sum(sums(made.summary, "phase", "calls").values()) == calls
    assert set(sums(made.summary, "group")) <= set(OPERATION_GROUPS) and made.summary.seconds_from == "predicted"
    assert sum(row["seconds"] for row in made.details["rows"]) == pytest.approx(whole.device_seconds)


def test_a_cpu_has_no_seconds(simulated):
    _, seen, _ = simulated
    assert anatomy.predicted(seen.tally, None, "fp16", 1).summary.seconds_from is None


def test_contractions_have_the_steps_model_flops(simulated):
    """Nothing is recomputed here but what the attention kernel recomputes in its backward pass."""
    _, seen, made = simulated
    assert sums(made.summary, "group", "flops")["contractions"] == pytest.approx(seen.model_flops, rel=0.05)


def test_an_operation_is_bound_by_what_takes_its_time(simulated):
    operations = [
        Operation("mm", MATMUL, "fp16", 2 * 4096**3, 6 * 4096**2, 1, (1, 4096, 4096, 4096)),
        Operation("add", ELEMENTWISE, "fp16", 10**8, 6 * 10**8),  # FLOPs that cost nothing
        Operation("clone", ELEMENTWISE, "fp16", 0, 4 * 10**8),
        Operation("mul", ELEMENTWISE, "fp16", 10, 40),
        Operation("copy_", HOST_COPY, "fp16", 0, 10**9),
        Operation("all_reduce", COLLECTIVE, "fp16", 0, 10**9, shape=(2, 1)),
    ]
    tally = Tally(places={"forward": Counter({("layer", operation): 1 for operation in operations})})
    listed = anatomy.predicted(tally, simulated[0].gpu, "fp16", 1).summary.largest
    bound = {row["name"]: row["bound_by"] for row in listed}
    expected = {"mm": "arithmetic", "add": "memory", "clone": "memory", "mul": "launches"}
    assert bound == expected | {"copy_": "host link", "all_reduce": "link"}


def test_operations_are_told_by_module_and_layer_in_both_passes(simulated):
    made = simulated[2].details
    places = {(row["phase"], row["module"]) for row in made["rows"] if row["name"] in ("mm", "addmm")}
    for phase in ("forward", "backward"):
        assert (phase, "bert.encoder.layer.*.attention.self.query") in places
        layers = {layer for layer, of, group, _ in made["layers"] if (of, group) == (phase, "contractions")}
        assert layers == {f"bert.encoder.layer.{n}" for n in range(3)}
    seconds = [s for layer, phase, group, s in made["layers"] if (phase, group) == ("backward", "contractions")]
    assert max(seconds) < 1.35 * min(seconds)


def test_the_optimizer_is_what_follows_the_backward_pass():
    group = anatomy.group_of
    assert group(Operation("_foreach_norm", REDUCTION), "step") == group(Operation("mm", MATMUL), "step") == "optimizer"
    assert group(Operation("_softmax", REDUCTION), "forward") == "normalisations"
    assert anatomy.flops_of(Operation("gelu", ELEMENTWISE, elements=7)) == 7
    assert anatomy.flops_of(Operation("_softmax", REDUCTION, elements=7)) == 35


def test_a_cpus_estimate_has_operations_without_seconds(train):
    found = train("recipe=estimate").record.operations
    assert found.seconds_from is None and {row["seconds"] for row in found.groups} == {None}
    assert sums(found, "group", "flops")["contractions"] > 0


# --- measured ----------------------------------------------------------------------------------------


@pytest.mark.slow_for("accelerate")
@pytest.mark.parametrize("recipe", ["trainer", "accelerate"])
def test_a_run_measures_what_an_estimate_lists(train, recipe):
    """The same groups, calls and FLOPs, in both recipes; and the losses and the memory as without the measurement."""
    run = train(f"recipe={recipe}", "measure.operations=true", "model.layers=2", "model.dropout=0.0")
    plain = train(f"recipe={recipe}", "model.layers=2", "model.dropout=0.0")
    estimate = train("recipe=estimate", "model.layers=2", "model.dropout=0.0")
    measured, listed = run.record.operations, estimate.record.operations
    assert measured.seconds_from == "cpu" and all(row["seconds"] > 0 for row in measured.groups)
    for key in ("group", "phase"):
        assert sums(measured, key, "flops") == pytest.approx(sums(listed, key, "flops"), rel=1e-3)
    assert sums(measured, "group", "calls")["contractions"] == sums(listed, "group", "calls")["contractions"]
    assert run.record.training.losses == plain.record.training.losses
    assert run.record.memory.peak_tensor_bytes == plain.record.memory.peak_tensor_bytes
    shown = step_file.read(run.folder)
    assert shown["timeline"] and {row["phase"] for row in shown["operations"]["rows"]} == {
        "forward",
        "backward",
        "step",
    }
    assert plain.record.operations is None


def test_the_seconds_are_those_of_the_operations(train):
    """Together they are less than the step, which has Python between them, and most of it where products are large."""
    run = train("recipe=accelerate", "measure.operations=true", "model.width=256", "data.seq_len=64")
    assert 0 < sum(sums(run.record.operations, "group").values()) < 3 * run.record.speed.step_seconds_median


def test_two_ranks_measure_their_communication(train):
    run = train(
        *small("recipe=accelerate", "measure.operations=true", "parallelism=ddp", "parallelism.num_processes=2")
    )
    assert sums(run.record.operations, "group", "bytes")["communication"] > 0


@pytest.mark.parametrize("mode", ["dp", "zero"])
def test_what_cannot_be_seen_is_refused(mode):
    problems = compose("measure.operations=true", f"parallelism={mode}").problems
    assert any("measure.operations" in line and "Leave it out" in line for line in problems)


def test_the_summary_and_the_table_have_the_groups(train):
    from legroom.cli import brief
    from legroom.report.files import csv_text
    from legroom.report.rows import make_table

    run = train(*V100)
    text = brief.brief(run.record, run.folder, verbose=True)
    assert "Operations of a step" in text and "contractions" in text and "% of the time" in text
    header, line = csv_text(make_table([run.record])).splitlines()
    values = dict(zip(header.split(","), line.split(",")))
    assert float(values["contractions_seconds"]) > 0 and values["communication_seconds"] == ""
