"""A verdict for every phase of a training, on the device and on the host."""

from __future__ import annotations

from dataclasses import replace

from conftest import compose

from legroom.cli import brief
from legroom.foresight import host, phases
from legroom.foresight.stored import Built, Heap, Stored, power_of_two
from legroom.records.record import DOES_NOT_FIT, FITS, HOST, Estimate, Record
from legroom.units import GIB, MIB

GPU = ("recipe=estimate", "gpu=a100_40gb", "model=gpt2_tiny")
MODEL = 10 * GIB


def kept(**more) -> Stored:
    """A rank with a model of 10 GiB in fp32 that it trains with AdamW."""
    built = Built(loaded=MODEL, files=0, largest=GIB, output=0, stored=MODEL, trained=MODEL, adapted=0)
    values = dict(
        built=built,
        prepared=MODEL,
        kept=3 * MODEL,
        states=2 * MODEL,
        trained=MODEL,
        on_host=(0, 0),
        host_peak=0,
        rows=0,
    )
    return Stored(**values | more)


def needs(phase: str, *overrides: str, stored: Stored | None = None) -> int:
    """The bytes of a machine's memory in a phase, without the libraries."""
    cfg = compose(*GPU, *overrides).cfg
    parts = host.by_phase(cfg, stored or kept())[phase]
    return sum(size for part, size in parts.items() if part not in ("libraries", "CUDA (assumed)"))


def judged(*overrides: str, stored: Stored | None = None, **estimate) -> Record:
    """The record of an estimate whose step fits, with its phases."""
    cfg = compose(*GPU, *overrides).cfg
    outcome = Record("estimate", [], {}, "", {}, status="ok")
    outcome.memory.device_used_bytes = 30 * GIB
    outcome.estimate = Estimate(True, 9 * GIB, 39 * GIB, FITS, GIB, decided_by="step")
    phases.enter(cfg, outcome, stored or kept(), GIB)
    return outcome


def of(outcome: Record, phase: str) -> dict:
    return next(each for each in outcome.memory.phases if each["phase"] == phase)


# --- the host ------------------------------------------------------------------------------------------


def test_every_rank_of_ddp_loads_the_whole_model_and_with_fsdp_rank_0_alone_does():
    ddp = needs("loading", "parallelism=ddp", "parallelism.num_processes=4")
    fsdp = needs("loading", "parallelism=fsdp", "parallelism.num_processes=4")
    assert ddp == 4 * MODEL and MODEL <= fsdp <= MODEL + GIB


def test_ranks_map_the_same_files_and_copy_weights_of_another_type():
    typed = ["parallelism=ddp", "parallelism.num_processes=4"]
    cfg = compose(*GPU, *typed).cfg
    cfg.model.pretrained = "a/model"
    same = kept(built=replace(kept().built, files=MODEL))
    other = kept(built=replace(kept().built, files=MODEL // 2))
    sizes = [sum(host.by_phase(cfg, each)["loading"].values()) for each in (same, other)]
    assert sizes[1] - sizes[0] == 4 * MODEL - MODEL // 2


def test_ranks_of_other_machines_do_not_count():
    machines = ["gpu.machines=2", "gpu.machine_link_gb_per_second=50"]
    assert needs("loading", "parallelism=ddp", "parallelism.num_processes=8", *machines) == 4 * MODEL


def test_quantised_layers_are_never_there_whole_together():
    assert needs("loading", "adapter=qlora", "precision=bf16") < MODEL


def test_a_checkpoint_copies_weights_and_states_once_where_all_ranks_have_the_same():
    typed = ["save.every_steps=2", "parallelism.num_processes=4"]
    assert needs("checkpoint", "parallelism=ddp", *typed) == 3 * MODEL
    assert needs("checkpoint", "parallelism=fsdp", *typed) == 4 * 3 * MODEL  # each its shards


def test_an_estimate_counts_the_host_memory_of_offload(predicted):
    typed = ["parallelism=fsdp", "parallelism.num_processes=2", "parallelism.cpu_offload=true"]
    outcome = predicted(*GPU[1:], *typed)
    parameters = outcome.memory.parameter_count * 4
    step = of(outcome, "step")["host_parts"]
    assert step["weights"] >= parameters and step["optimizer states"] >= 2 * parameters
    assert step["gradients and copies"] >= parameters
    without = predicted(*GPU[1:], *typed[:2])
    assert "optimizer states" not in of(without, "step")["host_parts"]


def test_pinned_memory_is_a_power_of_two():
    assert [power_of_two(size) for size in (1, 2, 3, 1024, 1025)] == [1, 2, 4, 1024, 2048]


def test_host_and_device_of_one_memory_are_judged_by_their_sum():
    typed = ["gpu=gb10_128gb", "gpu.memory_bytes=45097156608"]  # 42 GiB, of which 30 are the device's
    fitting = judged(*typed)
    assert fitting.estimate.fits and any("host and device share 42 GiB" in line for line in fitting.warnings)
    step = of(fitting, "step")
    left = 42 * GIB - step["device_bytes"] - step["host_bytes"]
    assert fitting.estimate.margin_bytes <= left  # what another card would not count
    offloaded = kept(on_host=(MODEL, 2 * MODEL))
    lacking = judged(*typed, "parallelism=fsdp", "parallelism.cpu_offload=true", stored=offloaded)
    assert (lacking.estimate.verdict, lacking.estimate.decided_by) == (DOES_NOT_FIT, HOST)
    assert "share 42 GiB" in lacking.error.message
    elsewhere = judged("parallelism=fsdp", "parallelism.cpu_offload=true", stored=offloaded)
    assert elsewhere.estimate.fits  # the host of a card is another memory, which is not known here
    beside = judged(*typed, "gpu.used_gib=9")  # half a GiB stays free
    assert not beside.estimate.fits


def test_a_host_that_is_known_to_be_too_small_decides_the_verdict():
    small = judged("gpu.host_memory_gib=8")
    assert (small.estimate.verdict, small.estimate.decided_by, small.status) == (DOES_NOT_FIT, HOST, "oom")
    assert small.estimate.first_lacking == "loading" and small.error.phase == "load"
    assert "8 GiB" in small.error.message and "Type" in small.error.hint
    large = judged("gpu.host_memory_gib=64")
    assert large.estimate.fits and large.estimate.host_margin_bytes > 0 and large.error is None


def test_a_host_that_is_not_known_is_named_where_much_is_needed():
    assert any("gpu.host_memory_gib=" in line for line in judged(stored=kept(on_host=(MODEL, 9 * MODEL))).warnings)
    assert not judged().warnings


def test_the_screen_says_what_the_host_lacks(predicted, tmp_path):
    outcome = predicted(*GPU[1:], "gpu.host_memory_gib=1")
    screen = " ".join(brief.answer(outcome).split())
    assert screen.startswith("does not fit") and "of the host's memory are missing of 1 GiB in loading" in screen


# --- the device ----------------------------------------------------------------------------------------


def test_a_phase_that_needs_more_than_the_step_decides():
    built = Built(loaded=60 * GIB, files=0, largest=GIB, output=0, stored=50 * GIB, trained=0, adapted=0)
    outcome = judged(stored=kept(built=built))
    estimate = outcome.estimate
    assert (estimate.verdict, estimate.decided_by, estimate.first_lacking) == (DOES_NOT_FIT, "loading", "loading")
    assert estimate.margin_bytes == 39 * GIB - 51 * GIB and "12 GiB are missing" in outcome.error.message


def test_a_step_that_fits_stays_as_it_is():
    outcome = judged()
    assert outcome.estimate.fits and outcome.estimate.first_lacking is None and outcome.estimate.decided_by == "step"
    assert [each["phase"] for each in outcome.memory.phases] == ["loading", "preparing", "step"]
    assert of(outcome, "step")["device_bytes"] == outcome.memory.device_used_bytes


def test_phases_are_in_the_order_of_a_training_and_sum_up_their_parts(predicted, tmp_path):
    outcome = predicted(*GPU[1:], "save.every_steps=2", "save.final=true", "data.eval_samples=8")
    names = [each["phase"] for each in outcome.memory.phases]
    assert names == ["loading", "preparing", "step", "evaluation", "checkpoint", "final save"]
    for each in outcome.memory.phases:
        assert sum(each["host_parts"].values()) == (each["host_bytes"] or 0)
    assert outcome.memory.host_needed_bytes == max(each["host_bytes"] or 0 for each in outcome.memory.phases)
    assert outcome.memory.disk_bytes > 3 * 12 * outcome.memory.parameter_count  # three checkpoints of AdamW in fp32
    left_out = predicted(*GPU[1:]).memory
    assert left_out.disk_bytes is None and left_out.checkpoint_bytes == outcome.memory.checkpoint_bytes
    assert outcome.memory.disk_bytes > 3 * outcome.memory.checkpoint_bytes, "three checkpoints, and the model"
    screen = brief.answer(outcome)
    assert all(f"  {name} " in screen for name in names)


# --- a CPU ---------------------------------------------------------------------------------------------


def test_on_a_cpu_the_host_holds_the_tensors(predicted):
    outcome = predicted("device=cpu", "model=gpt2_tiny")
    assert of(outcome, "step")["host_parts"]["tensors"] >= outcome.memory.peak_tensor_bytes
    assert of(outcome, "step")["device_bytes"] is None and outcome.memory.host_memory_bytes
    two = predicted("device=cpu", "model=gpt2_tiny", "parallelism=ddp", "parallelism.num_processes=2")
    assert two.memory.host_needed_bytes > outcome.memory.host_needed_bytes + 300 * MIB


def test_a_checkpoint_on_a_cpu_is_a_copy_beside_what_stays_resident():
    cfg = compose("recipe=estimate", "device=cpu", "save.every_steps=2").cfg
    parts = host.by_phase(cfg, kept(heap=Heap(step=9 * GIB, kept=4 * GIB, checkpoint=6 * GIB)))["checkpoint"]
    assert (parts["tensors"], parts["copies"]) == (4 * GIB, 2 * GIB)


def test_processes_that_load_batches_are_counted_on_each_rank(predicted):
    outcome = predicted("device=cpu", "model=gpt2_tiny", "data.workers=2")
    assert of(outcome, "step")["host_parts"]["workers"] == 2 * host.WORKER_BYTES
