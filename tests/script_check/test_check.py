"""`legroom check` on whole scripts, which run on an unmodified CUDA build of torch: what each of them is told."""

import json
import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import scripts
from legroom.cli import check as command
from legroom.script_check import check, cuda_build
from legroom.script_check.command import parse
from legroom.units import MIB

PYTHON = Path(sys.executable)
CARD = "rtx4090_24gb"


pytestmark = [
    pytest.mark.cuda_build,
    pytest.mark.skipif(sys.platform != "linux", reason="the device is emulated on Linux"),
    pytest.mark.skipif(not cuda_build.is_fetched(), reason="no CUDA build of torch is fetched: make cuda-build"),
]


@pytest.fixture
def checked(tmp_path, monkeypatch):
    """checked(text, *arguments, launcher=, gpu=, **settings): what a script comes to, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")

    def run(text, *arguments, launcher=(), gpu=CARD, **settings):
        Path("script.py").write_text(text)
        line = [*(launcher or [sys.executable]), "script.py", *arguments]
        (found,) = check.followed(parse(line), {gpu: check.gpu_of(gpu)}, check.Settings(**settings))
        return found

    return run


def torchrun(ranks: int) -> list[str]:
    return [str(PYTHON.parent / "torchrun"), "--nproc_per_node", str(ranks)]


def notes(found) -> str:
    return "\n".join([*found.outcome.notes, *(note for one in found.estimates.values() for note in one.notes)])


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(scripts.PACKED_LSTM, marks=pytest.mark.slow),
        scripts.TORCH_FUNC,
        pytest.param(scripts.FLEX_ATTENTION, marks=pytest.mark.slow),
        pytest.param(scripts.THREAD, marks=pytest.mark.slow),
        scripts.STARTS_ANOTHER,
    ],
    ids=[
        "packed LSTM with a CTC loss",
        "torch.func",
        "flex attention",
        "a thread that moves to the GPU",
        "a process that trains",
    ],
)
def test_scripts_of_every_kind_get_a_verdict(checked, text):
    found = checked(text)
    assert found.estimates, found.why
    (estimate,) = found.estimates.values()
    assert estimate.verdict == "fits"
    assert 0 < estimate.tensor_bytes <= estimate.allocated_bytes <= estimate.reserved_bytes
    assert sum(estimate.parts.values()) == estimate.tensor_bytes


def test_the_parts_of_adamw_are_those_of_its_weights(checked):
    found = checked(scripts.LLAMA + "train(llama().cuda())")
    (estimate,) = found.estimates.values()
    (weights,) = {sum(elements for elements, _ in found.outcome.recorded["trained"])}
    assert estimate.parts["parameters"] == 4 * weights
    assert 2 * 4 * weights <= estimate.parts["optimizer"] < 2.02 * 4 * weights  # two states, and a count of steps each
    assert estimate.step_seconds_low < estimate.step_seconds < estimate.step_seconds_high


def test_a_size_that_nobody_computed_is_its_upper_bound_and_said(checked):
    found = checked(scripts.HARD_EXAMPLES)
    (estimate,) = found.estimates.values()
    kept = 2048 // 2  # half of all rows, were all of them hard
    head = kept * 1024 * 4
    assert estimate.tensor_bytes > head
    assert "script.py:12 reads a whole number that nobody computed: as a size it is at most 2,048" in notes(found)


def test_a_size_without_a_bound_is_refused_with_its_line(checked):
    found = checked(scripts.DURATIONS)
    assert not found.estimates
    assert "script.py:10: a size is made of a number that only a run computes" in found.why


def test_tokens_are_taken_to_be_shared_equally_among_experts(checked):
    found = checked(scripts.EXPERTS)
    assert found.estimates, found.why
    assert "256, an equal share, are taken" in notes(found)


def test_decisions_go_the_way_in_which_training_goes_on(checked):
    """And a checkpoint of 128 MiB behind each step takes no longer than writing it."""
    found = checked(scripts.GUARDED, seconds=90)
    assert found.estimates, found.why
    assert notes(found).count("decides by a number that nobody computed") == 3


@pytest.mark.slow
def test_nothing_may_decide_with_strict(checked):
    found = checked(scripts.GUARDED, strict=True)
    assert "--strict" in found.why
    assert "script.py" in found.why


def test_a_script_that_catches_out_of_memory_goes_on_with_less(checked):
    found = checked(scripts.CATCHES_OUT_OF_MEMORY, gpu="rtx4060_8gb")
    (estimate,) = found.estimates.values()
    assert estimate.verdict != "does not fit"
    assert estimate.allocated_bytes <= estimate.reserved_bytes
    assert "ran out of memory" in notes(found)


@pytest.mark.slow
def test_a_probe_that_runs_out_of_memory_changes_little(checked):
    probe = "try:\n    torch.empty(2**40, device='cuda')\nexcept torch.OutOfMemoryError:\n    pass\n"
    plain = checked(scripts.LLAMA + "train(llama().cuda())")
    probing = checked(scripts.LLAMA + probe + "train(llama().cuda())")
    (plain_estimate,), (estimate,) = plain.estimates.values(), probing.estimates.values()
    assert estimate.tensor_bytes == plain_estimate.tensor_bytes
    assert estimate.allocated_bytes <= estimate.reserved_bytes <= plain_estimate.reserved_bytes
    assert estimate.reserved_bytes >= 0.9 * plain_estimate.reserved_bytes
    assert "ran out of memory once" in notes(probing)


CHOOSES_ITS_CARD = "import os\nos.environ['CUDA_VISIBLE_DEVICES'] = '1'\n" + scripts.LLAMA + "train(llama().cuda())"


@pytest.mark.slow
def test_a_card_that_the_script_chooses_is_there_if_the_machine_has_it(checked):
    alone = checked(CHOOSES_ITS_CARD)
    assert 'CUDA_VISIBLE_DEVICES to "1", and the machine has one card' in alone.why
    of_two = checked(CHOOSES_ITS_CARD, launcher=["CUDA_VISIBLE_DEVICES=0,1", sys.executable])
    assert of_two.estimates, of_two.why


@pytest.mark.slow
def test_the_figures_of_several_cards_are_those_of_the_fullest(checked):
    text = scripts.HEAD + scripts.TWO_CARDS
    found = checked(text, launcher=["CUDA_VISIBLE_DEVICES=0,1", sys.executable])
    (estimate,) = found.estimates.values()
    assert estimate.parts["parameters"] == 4 * (2048 * 2048 + 2048) * 4
    assert estimate.tensor_bytes <= estimate.allocated_bytes
    assert "the figures are those of number 1" in notes(found)


def test_what_does_not_fit_says_how_much_is_missing(checked):
    found = checked(scripts.TOO_LARGE)
    (estimate,) = found.estimates.values()
    weights = 16 * (16384 * 16384 + 16384) * 4
    assert estimate.verdict == "does not fit"
    assert estimate.parts["parameters"] == weights
    assert estimate.left_bytes < 0
    assert -estimate.left_bytes > 4 * weights - estimate.capacity_bytes


@pytest.mark.slow
def test_the_script_finds_the_card_that_was_asked_for(checked):
    found = checked(scripts.ASKS_THE_CARD, gpu="t4_16gb")
    card = check.gpu_of("t4_16gb")
    assert f"NVML {card.device_name} {card.memory_bytes}" in found.outcome.output
    assert f"SMI {card.device_name}, {card.memory_bytes // MIB} MiB" in found.outcome.output
    assert f"TORCH {card.device_name} (7, 5)" in found.outcome.output


@pytest.mark.parametrize(
    ("text", "ranks"), [pytest.param(scripts.DDP, 2, marks=pytest.mark.slow), (scripts.FSDP2, 8)], ids=["DDP", "FSDP 2"]
)
def test_one_rank_of_several_is_followed(checked, text, ranks):
    found = checked(text, launcher=torchrun(ranks))
    assert found.estimates, found.why
    (estimate,) = found.estimates.values()
    trained = sum(elements for elements, _ in found.outcome.recorded["trained"]) * 4
    states = estimate.parts["optimizer"]
    sharded = text is scripts.FSDP2
    assert states == pytest.approx(2 * trained / (ranks if sharded else 1), rel=0.05)
    assert "NCCL" in notes(found)


@pytest.mark.parametrize(
    "text",
    [scripts.TENSOR_PARALLEL, pytest.param(scripts.MESH_ALONE, marks=pytest.mark.slow)],
    ids=["tensor parallelism with device_id", "init_device_mesh alone"],
)
def test_ranks_of_a_mesh_are_followed_alone(checked, text):
    found = checked(text, launcher=torchrun(4))
    assert found.estimates, found.why
    (estimate,) = found.estimates.values()
    weights = 2 * 512 * 2048 // 4 if text is scripts.TENSOR_PARALLEL else 2 * 512 * 512 // 2
    assert estimate.parts["optimizer"] == pytest.approx(2 * 4 * weights, rel=0.05)


@pytest.mark.slow
def test_a_stage_that_waits_for_the_shapes_of_others_is_refused_in_words(checked):
    found = checked(scripts.PIPELINE, launcher=torchrun(4))
    assert "script.py:15: rank 0 receives an object of rank 1, which is not there" in found.why


@pytest.mark.slow
def test_ranks_that_accelerate_starts_run_out_of_memory_as_one_does(checked):
    accelerate = str(PYTHON.parent / "accelerate")
    launcher = [accelerate, "launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1"]
    text = scripts.TOO_LARGE.replace("import torch\n", "import torch, accelerate\naccelerate.Accelerator()\n", 1)
    found = checked(text, launcher=launcher, gpu="rtx4060_8gb")
    (estimate,) = found.estimates.values()
    assert estimate.verdict == "does not fit"


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune-no-cudagraphs"])
def test_compiled_code_is_followed_without_measuring_candidates(checked, mode, monkeypatch):
    found = checked(scripts.COMPILED, mode)
    assert found.estimates, found.why
    assert "kernels of a step are started by compiled code" in notes(found)
    if mode == "reduce-overhead":
        assert found.outcome.steps == 3  # the first warms up, the second is recorded, and the third is played again
    else:
        assert "compiles with max-autotune-no-cudagraphs: no kernel is measured here" in notes(found)


def test_a_script_may_take_the_labels_out_of_its_longest_batch(checked):
    found = checked(scripts.UNEVEN_ROWS)
    (estimate,) = found.estimates.values()
    assert found.outcome.steps == 4  # two as the rows come, and two on the longest
    assert estimate.tensor_bytes > 4 * 400 * 100 * 4
    assert "3,200 elements" in notes(found)


@pytest.mark.slow
def test_a_trainer_is_followed_with_its_arguments(checked):
    plain = checked(scripts.TRAINER, "--output_dir", "out", "--report_to", "none")
    bits = checked(scripts.TRAINER, "--output_dir", "out", "--report_to", "none", "--bf16", "true")
    (plain,), (bits,) = plain.estimates.values(), bits.estimates.values()
    assert bits.parts["activations"] < plain.parts["activations"]
    assert not Path("out").exists()


def test_weights_that_are_not_here_are_taken_to_be_there(checked):
    found = checked(scripts.WITHOUT_WEIGHTS)
    assert found.estimates, found.why
    assert "torch.bfloat16 cuda:0" in found.outcome.output
    assert "loaded from only_a_configuration" in found.outcome.output
    assert "MISSING" not in found.outcome.output
    assert "only_a_configuration has no weights here" in notes(found)


@pytest.mark.slow
def test_what_an_optimizer_allocates_behind_its_closure_is_of_the_step(checked):
    found = checked(scripts.CLOSURE)
    (estimate,) = found.estimates.values()
    assert estimate.peak_phase == "step"
    assert estimate.parts["parameters"] == estimate.parts["gradients"] == 4 * (1024 * 1024 + 1024) * 4


@pytest.mark.slow
def test_frozen_weights_are_weights_behind_gc_freeze(checked):
    found = checked(scripts.FREEZES_GARBAGE)
    (estimate,) = found.estimates.values()
    layer = 4 * 128 * 128 + 3 * 128 * 352 + 2 * 128
    assert estimate.parts["parameters"] == 4 * (2 * 4000 * 128 + 2 * layer + 128)


@pytest.mark.slow
def test_what_a_model_generates_is_as_long_as_it_may_be(checked):
    found = checked(scripts.GENERATED)
    assert found.estimates, found.why
    assert "generated 32 tokens" in found.outcome.output
    assert "selects elements by values that nobody computed: all 32" in notes(found)


@pytest.mark.slow
def test_a_model_larger_than_the_host_takes_no_memory_of_it(checked):
    found = checked(scripts.LARGE_ON_THE_HOST, memory_bytes=3 * 2**30)
    assert found.estimates, found.why
    (estimate,) = found.estimates.values()
    assert estimate.parts["parameters"] > 3 * 2**30


def test_an_error_of_the_script_is_named_with_its_line(checked):
    found = checked(scripts.HEAD + "model = nn.Linear(8, 8).cuda()\nmodel(torch.randn(2, 9).cuda())\n")
    assert found.why.startswith("the script fails: ")
    assert "script.py:6" in found.why
    assert "RuntimeError" in found.why


@pytest.mark.slow
def test_too_few_steps_are_said(checked):
    found = checked(scripts.LLAMA + "train(llama().cuda(), steps=1)")
    assert "ended after 1 optimizer steps, and 2 are needed" in found.why


def test_the_command_prints_the_verdict_and_writes_its_record(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("script.py").write_text(scripts.LLAMA + "train(llama().cuda())")
    line = ["--gpu", CARD, "--into", "out", "--", sys.executable, "script.py"]
    assert command.main(line) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("fits on NVIDIA GeForce RTX 4090")
    assert "followed: 2 optimizer steps; not seen: what the script does later." in printed
    record = json.loads(Path("out", "result.json").read_text())
    assert record["status"] == "ok"
    assert record["memory"]["peak_tensor_bytes"] > 0
    assert Path("out", "report.html").exists() or list(Path("out").glob("*.html"))


@pytest.mark.slow
def test_a_budget_is_kept_by_the_exit_code(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("script.py").write_text(scripts.LLAMA + "train(llama().cuda())")
    assert command.main(["--gpu", CARD, "--budget", "100MiB", "--json", "--", sys.executable, "script.py"]) == 3
    assert CARD in json.loads(capsys.readouterr().out)


def test_nothing_outside_is_changed(checked, tmp_path):
    (tmp_path / "kept").write_text("before")
    text = scripts.LLAMA + "open('kept', 'w').write('after'); os.mkdir('made'); train(llama().cuda())"
    found = checked(text)
    assert found.estimates, found.why
    assert (tmp_path / "kept").read_text() == "before"
    assert sorted(os.listdir(tmp_path)) == ["kept", "script.py"]
