"""Published runs, built as their own loops did them, against what was measured."""

from __future__ import annotations

import subprocess
import sys

import published_runs
import published_table
import pytest
import torch
import transformers
from conftest import ROOT
from published_models import ARCHITECTURES, causal_forward_4_48

GIB = 2**30
# The same job on xMem's two cards differs by up to 14 %: a test may not ask for more than that.
NOISE = 0.14


@pytest.mark.slow
def test_a_step_of_xmem_reserves_what_was_measured():
    row = next(
        row for row in published_table.rows("published_rtx_fp32") if "Cerebras" in row["model"] and row["batch"] == "30"
    )
    run = published_runs.xmem(row["model"], 30, 128, row["optimizer"], 0, (8, 9), 8 * GIB)
    assert run.demand.peak_reserved_bytes == pytest.approx(int(row["measured_peak_bytes"]), rel=NOISE)


def test_gradients_that_live_longer_take_more():
    def allocated(mode):
        run = published_runs.xmem("cerebras/Cerebras-GPT-111M", 24, 128, "SGD", mode, (8, 6), 12 * GIB)
        return run.demand.peak_allocated_bytes

    assert allocated(1) > allocated(0)  # alive through the forward pass, where much else is


@pytest.mark.slow
def test_a_fine_tuning_peaks_in_the_optimizer_where_the_batch_is_small():
    run = published_runs.fine_tuning("ibm/PowerLM-3b", 1, 128, (8, 0), 80 * GIB)
    row = next(row for row in published_table.rows("published_a100_bf16") if row["model"] == "ibm/PowerLM-3b")
    states = float(row["allocated_at_end_bytes"])  # weights and two states: 3 of the 5 copies at the peak
    assert run.demand.peak_allocated_bytes == pytest.approx(states * 5 / 3, rel=0.01)


def test_softmax_of_2022_saves_its_input_and_gradients_stay_as_zeros():
    weight = torch.nn.Parameter(torch.ones(4, 4))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    saved = []
    with (
        published_runs.libraries_of_january_2022(),
        torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t),
    ):
        scores = weight * 2
        torch.nn.functional.softmax(scores, dim=-1).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert any(tensor.data_ptr() == scores.data_ptr() for tensor in saved)
    assert weight.grad is not None and not weight.grad.any()
    optimizer.zero_grad()
    assert weight.grad is None  # the patches are undone


def test_every_row_is_built_or_named_with_the_reason():
    for name in ("published_rtx_fp32", "published_a100_bf16"):
        assert {row["model"] for row in published_table.rows(name)} <= set(ARCHITECTURES)
    assert {row["gpu"] for row in published_table.rows("published_rtx_fp32")} == set(published_table.RTX_CAPABILITY)


def test_the_script_names_every_table():
    assert '"guide", "rtx", "a100"' in (ROOT / "tests/tools/published.py").read_text()
    assert {"guide", "rtx", "a100", "speed"} <= set(published_table.TABLES)


def test_an_unknown_table_is_refused():
    ended = subprocess.run(
        [sys.executable, str(ROOT / "tests/tools/published.py"), "a200"], capture_output=True, text=True, timeout=120
    )
    assert ended.returncode == 2 and "a200" in ended.stderr and "a100" in ended.stderr


def test_errors_are_summarised_in_a_line():
    assert published_table.summary_line("Ours", [0.01, -0.03, 0.02]) == (
        "Ours: 3 rows, median size 2.00%, signed median +1.00%, worst -3.0%."
    )


@pytest.mark.parametrize(
    "name,parameters",
    [
        # As their model cards count them: 125 M, 111 M, 60 M, 1.1 B, 3.5 B.
        ("EleutherAI/gpt-neo-125M", 125_198_592),
        ("cerebras/Cerebras-GPT-111M", 111_050_496),
        ("T5-small", 60_506_624),
        ("bigcode/gpt_bigcode-santacoder", 1_124_886_528),
        ("ibm/PowerLM-3b", 3_510_819_072),
    ],
)
def test_published_models_have_their_sizes(name, parameters):
    own = ARCHITECTURES[name]
    config = transformers.AutoConfig.for_model(own.model_type, **own.sizes)
    with torch.device("meta"):
        model = getattr(transformers, own.auto_class).from_config(config)
    assert sum(weight.numel() for weight in model.parameters()) == parameters


def test_the_loss_of_older_versions_is_that_of_the_next_token():
    config = transformers.GPTBigCodeConfig(vocab_size=32, n_positions=8, n_embd=8, n_layer=1, n_head=1, eos_token_id=0)
    model = transformers.GPTBigCodeForCausalLM(config).eval()
    ids = torch.arange(12).view(2, 6)
    told = {"input_ids": ids, "labels": ids, "attention_mask": torch.ones_like(ids)}
    assert causal_forward_4_48(model, **told).loss.item() == pytest.approx(model(**told).loss.item(), rel=1e-6)
