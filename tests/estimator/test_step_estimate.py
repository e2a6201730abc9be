"""estimate_step: the estimate of any step, by the same rules as recipe=estimate."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import re
import subprocess
import sys
import warnings

import pytest
import torch
from conftest import ROOT
from torch import nn
from torch.nn.init import trunc_normal_

from legroom import Refusal, estimate_step
from legroom.machine import gpu_specs
from legroom.machine.gpu_specs import NOT_OF_A_SHEET
from legroom.units import MIB

GPU = "rtx4090_24gb"
WIDTH = 1024
EXAMPLES = ROOT / "examples"


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))


def adamw_step(model, optimizer, batch):
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


def made(step=adamw_step, gpu=GPU, batch=64, **options):
    """The estimate of `network` with AdamW."""

    def make():
        model = network()
        return model, torch.optim.AdamW(model.parameters()), torch.zeros(batch, WIDTH)

    return estimate_step(step, make=make, gpu=gpu, **options)


# --- figures ----------------------------------------------------------------------------------------


def test_the_parts_of_a_step_by_hand():
    found = made()
    count = sum(weight.numel() for weight in network().parameters())
    assert found.parts["parameters"] == found.parts["gradients"] == 4 * count
    assert found.parts["optimizer"] == pytest.approx(8 * count, rel=1e-3)
    assert sum(found.parts.values()) == found.tensor_bytes < found.allocated_bytes <= found.reserved_bytes
    assert found.tensor_bytes == pytest.approx(20 * count, rel=0.02), "AdamW's foreach form makes one copy more"
    assert max(live for _, live in found.timeline) == found.tensor_bytes
    assert {phase for phase, _ in found.timeline} == {"forward", "backward", "step"}
    assert found.fits and found.capacity_bytes - found.left_bytes == found.device_used_bytes
    assert found.step_seconds > 0 and found.model_flops == 3 * 2 * 64 * 8 * WIDTH**2 - 2 * 64 * 4 * WIDTH**2
    assert "fits on NVIDIA GeForce RTX 4090" in str(found) and found.largest[0]["made_by"]


def test_the_text_has_the_two_digits_of_a_time_that_are_known():
    found = made()
    seconds = {"step_seconds_low": 0.00462, "step_seconds": 0.00616, "step_seconds_high": 0.0077}
    assert f"  step 6.2 ms (4.6 to 7.7), bound by {found.bound_by}\n" in str(dataclasses.replace(found, **seconds))
    long = {name: value * 1000 / 3 for name, value in seconds.items()}
    assert "  step 2.1 s (1.5 to 2.6), bound" in str(dataclasses.replace(found, **long))


def test_it_is_the_estimate_of_the_recipe(predicted):
    """The same model, data and optimizer in a step that is written by hand."""
    import transformers

    words = ["model=gpt2_tiny", "precision=bf16", "data.seq_len=64", "data.samples=8", "batch.per_device=4"]
    recipe = predicted(*words, f"gpu={GPU}")
    sizes = recipe.config["model"]

    def make():
        config = transformers.GPT2Config(
            vocab_size=sizes["vocab"],
            n_positions=sizes["positions"],
            n_embd=sizes["width"],
            n_layer=sizes["layers"],
            n_head=sizes["heads"],
            n_inner=sizes["feed_forward"],
            use_cache=False,
        )
        model = transformers.GPT2LMHeadModel(config).train()
        ids = torch.zeros(4, 64, dtype=torch.long)
        return model, torch.optim.AdamW(model.parameters()), {"input_ids": ids, "labels": ids.clone()}

    def step(model, optimizer, batch):
        with torch.autocast("cuda", torch.bfloat16):
            outputs = model(**batch)
        loss = outputs.loss
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    found = estimate_step(step, make=make, gpu=GPU)
    memory = recipe.memory
    assert found.parts["optimizer"] == memory.optimizer_bytes
    assert found.reserved_bytes == pytest.approx(memory.peak_reserved_bytes, rel=0.05)
    assert found.tensor_bytes == pytest.approx(memory.peak_tensor_bytes, rel=0.05)


def test_two_optimizers_count_as_one():
    def make():
        model, batch = network(), torch.zeros(64, WIDTH)
        first, _, second = model
        return model, [torch.optim.AdamW(first.parameters()), torch.optim.SGD(second.parameters(), momentum=0.9)], batch

    def step(model, optimizers, batch):
        model(batch).square().mean().backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()

    found = estimate_step(step, make=make, gpu=GPU)
    first, second = (4 * sum(weight.numel() for weight in layer.parameters()) for layer in network()[::2])
    assert found.parts["optimizer"] == pytest.approx(2 * first + second, rel=1e-3)
    assert found.parts["gradients"] == first + second


def test_weights_are_not_drawn_and_stay_tied():
    import transformers

    def make():
        weight = nn.init.trunc_normal_(torch.empty(8, 8))
        assert weight.shape == (8, 8)
        config = transformers.GPT2Config(vocab_size=64, n_positions=8, n_embd=8, n_layer=1, n_head=1)
        model = transformers.GPT2LMHeadModel(config)
        assert model.lm_head.weight is model.transformer.wte.weight
        return model, torch.optim.SGD(model.parameters()), torch.zeros(1, 8, dtype=torch.long)

    assert estimate_step(lambda model, _, ids: model(ids).logits.sum().backward(), make=make, gpu=GPU).fits


def test_moving_a_module_keeps_tied_weights_tied():
    """torch swaps a parameter's memory where both devices are its own, and would make another parameter here."""
    import transformers

    def make(place):
        config = transformers.GPT2Config(vocab_size=512, n_positions=8, n_embd=64, n_layer=1, n_head=1)
        with torch.device("cpu"):
            model = transformers.GPT2LMHeadModel(config)
            model.tie_weights()
        optimizer = torch.optim.AdamW(model.parameters())
        moved = place(model)
        assert moved.lm_head.weight is moved.transformer.wte.weight is optimizer.param_groups[0]["params"][0]
        return moved, optimizer, torch.zeros(1, 8, dtype=torch.long)

    def step(model, optimizer, ids):
        model(ids).logits.sum().backward()
        optimizer.step()

    places = (
        lambda model: model.to("cuda"),
        lambda model: model.cuda(),
        lambda model: model.to(torch.device("cuda", 0)),
    )
    tied, *others = (estimate_step(step, make=functools.partial(make, place), gpu=GPU) for place in places)
    assert [other.parts for other in others] == [tied.parts] * 2
    assert tied.parts["optimizer"] == pytest.approx(2 * tied.parts["parameters"], rel=1e-2)


def test_given_objects_are_copied_without_data():
    model = network()
    optimizer = torch.optim.AdamW(model.parameters())
    adamw_step(model, optimizer, torch.randn(2, WIDTH))
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    found = estimate_step(adamw_step, model, optimizer, torch.zeros(64, WIDTH), gpu=GPU)
    assert found.reserved_bytes == made().reserved_bytes
    for name, weight in model.named_parameters():
        assert weight.device.type == "cpu" and torch.equal(weight, before[name]) and weight.grad is None
    adamw_step(model, optimizer, torch.randn(2, WIDTH))


def test_bare_parameters_and_optimizer_attributes_are_copied():
    class Twice(torch.optim.SGD):
        """As sharpness-aware minimisation: it holds another optimizer of the same parameters."""

        def __init__(self, parameters):
            super().__init__(parameters, lr=0.1)
            self.base = torch.optim.AdamW(self.param_groups)

        def step(self, closure=None):
            self.base.step()

    def step(model, optimizer, batch):
        rows, scale = batch
        (model(rows) * scale).mean().backward()
        optimizer.step()
        assert optimizer.base.param_groups[0]["params"][0] is next(model.parameters())
        return scale.grad

    model, scale = network(), nn.Parameter(torch.ones(WIDTH))
    optimizer = Twice([*model.parameters(), scale])
    found = estimate_step(step, model, optimizer, (torch.zeros(64, WIDTH), scale), gpu=GPU)
    assert found.reserved_bytes > made().parts["optimizer"] + made().parts["gradients"]
    assert scale.grad is None and not optimizer.base.state


def test_a_verdict_with_a_margin():
    reserved = made().reserved_bytes
    tight = made(memory_limit_gib=reserved * 1.01 / 2**30)
    assert (tight.verdict, tight.fits) == ("tight", False) and 0 <= tight.left_bytes < tight.kept_bytes
    assert made(memory_limit_gib=reserved * 1.01 / 2**30, margin=0).fits
    assert made(memory_limit_gib=reserved * 0.9 / 2**30).verdict == "does not fit"


def test_a_gpu_may_be_a_mapping():
    small = made(gpu={"name": GPU, "memory_bytes": 600 * MIB})
    assert small.verdict == "does not fit" and small.capacity_bytes == 600 * MIB
    sheet = {key: value for key, value in gpu_specs.options()[GPU].items() if key not in NOT_OF_A_SHEET}
    assert made(gpu=sheet | {"memory_bytes": 600 * MIB, "name": "mine"}) == small
    with pytest.raises(Refusal, match="memory_byte"):
        made(gpu={"name": GPU, "memory_byte": 1})
    with pytest.raises(Refusal, match="Did you mean rtx4090_24gb"):
        made(gpu="rtx4090_24g")


def test_fp16_with_a_scaler_and_autocast():
    scaler = None

    def step(model, optimizer, batch):
        nonlocal scaler
        scaler = scaler or torch.amp.GradScaler("cuda")
        with torch.autocast(device_type="cuda", dtype=torch.float16):
            loss = model(batch.to("cuda")).float().square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    assert made(step, batch=8192).tensor_bytes < made(batch=8192).tensor_bytes
    assert made(step, gpu="v100_16gb").fits


def test_a_disabled_scaler_is_noted():
    """As torch makes of one that is built outside of the estimate on a machine without CUDA."""
    scaler = torch.amp.GradScaler("cuda", enabled=False)

    def step(model, optimizer, batch):
        scaler.scale(model(batch).float().mean()).backward()
        scaler.step(optimizer)

    assert any("build it inside step or make" in note for note in made(step, batch=64).notes)
    assert not any("GradScaler" in note for note in made(batch=64).notes)


def test_the_hosts_calls_take_longer_under_autocast():
    def casts(model, optimizer, batch):
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(batch).float().mean()
        loss.backward()

    def is_bf16(model, optimizer, batch):
        model(batch.bfloat16()).float().mean().backward()

    def make():
        model = network().bfloat16()
        return model, None, torch.zeros(1, WIDTH)

    def seconds_of_a_call(found):
        return found.host_seconds / sum(
            sum(tally.calls.values()) for tally in (*found._trace.passes, found._trace.tally)
        )

    plain, cast = made(lambda model, _, batch: model(batch).mean().backward()), made(casts)
    pure = estimate_step(is_bf16, make=make, gpu=GPU)
    assert seconds_of_a_call(cast) > 1.2 * seconds_of_a_call(plain)
    assert seconds_of_a_call(pure) == pytest.approx(seconds_of_a_call(plain), rel=0.1)


def test_tf32_that_the_gpu_lacks_is_no_error():
    allowed, seconds = torch.get_float32_matmul_precision(), {}
    try:
        for precision in ("high", "highest"):  # another test may have left either behind
            torch.set_float32_matmul_precision(precision)
            for gpu in ("v100_16gb", "a100_40gb"):
                seconds[gpu, precision] = made(gpu=gpu, batch=8192).step_seconds
    finally:
        torch.set_float32_matmul_precision(allowed)
    assert seconds["v100_16gb", "high"] == seconds["v100_16gb", "highest"]
    assert seconds["a100_40gb", "high"] < seconds["a100_40gb", "highest"]


@pytest.mark.parametrize("kind", ["module", "in place", "inner", "function", "step"])
def test_compiled_code_is_followed_as_written_and_says_so(kind):
    def compiler(graph, inputs):
        raise AssertionError("nothing is compiled")

    def make():
        model = network()
        if kind == "in place":
            model.compile(backend=compiler)
        elif kind == "inner":
            model[0] = torch.compile(model[0], backend=compiler)
        elif kind == "module":
            model = torch.compile(model, backend=compiler)
        return model, torch.optim.AdamW(model.parameters()), torch.zeros(64, WIDTH)

    @torch.compile(backend=compiler)
    def loss_of(rows):
        return rows.square().mean()

    def step(model, optimizer, batch):
        loss = loss_of(model(batch))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    compiled = {"function": step, "step": torch.compile(adamw_step, backend=compiler)}.get(kind, adamw_step)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        found = estimate_step(compiled, make=make, gpu=GPU)
    plain = made()
    assert found.reserved_bytes == plain.reserved_bytes
    assert [note.partition(":")[0] for note in found.notes].count("torch.compile") == 1
    assert not any("torch.compile" in note for note in plain.notes)


def test_recurrent_layers_are_followed_by_operations():
    def make():
        model = nn.LSTM(8, 8, batch_first=True)
        return model, torch.optim.SGD(model.parameters()), torch.zeros(1, 4, 8)

    found = estimate_step(lambda model, _, batch: model(batch)[0].mean().backward(), make=make, gpu=GPU)
    assert any(note.startswith("recurrent layers") for note in found.notes)
    assert not any(note.startswith("recurrent layers") for note in made().notes)


def test_a_parametrised_weight_is_not_computed_for_the_ledger():
    model = nn.utils.parametrizations.weight_norm(nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters())
    found = estimate_step(adamw_step, model, optimizer, torch.zeros(8, 64), gpu=GPU)
    assert found.parts["parameters"] >= 64 * 64 * 4


def test_sparse_gradients_are_refused():
    def make():
        model = nn.Embedding(16, 8, sparse=True)
        return model, torch.optim.SparseAdam(model.parameters()), torch.zeros(4, dtype=torch.long)

    with pytest.raises(Refusal, match="sparse=False"):
        estimate_step(adamw_step, make=make, gpu=GPU)


def test_events_and_streams_of_cuda_are_at_hand():
    def step(model, optimizer, batch):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record(torch.cuda.current_stream())
        batch.pin_memory().record_stream(torch.cuda.current_stream())
        torch.cuda.synchronize()
        with torch.cuda.stream(torch.cuda.Stream()):
            loss = adamw_step(model, optimizer, batch)
        end.record()
        end.synchronize()
        print(f"{begin.elapsed_time(end):.1f} ms")
        return loss

    on_streams, plain = made(step), made()
    assert on_streams.allocated_bytes == plain.allocated_bytes
    assert on_streams.reserved_bytes > plain.reserved_bytes, "a stream gets no blocks of another one"


def test_a_dtype_that_the_gpu_lacks_is_refused():
    def step(model, optimizer, batch):
        with torch.autocast("cuda", torch.bfloat16):
            model(batch).float().mean().backward()
        optimizer.step()

    with pytest.raises(Refusal, match="V100.*bf16"):
        made(step, gpu="v100_16gb")


# --- what cannot be followed ------------------------------------------------------------------------


def line_of(refusal: pytest.ExceptionInfo) -> str:
    """The source of the line that a refusal names."""
    file, number, _ = str(refusal.value).split(":", 2)
    assert file == __file__
    return open(file).read().splitlines()[int(number) - 1].strip()


def test_a_number_that_is_only_printed_is_no_decision(capsys):
    def step(model, optimizer, batch):
        loss = adamw_step(model, optimizer, batch)
        total = 0.0 + loss.item()
        print(f"{total:.3f} {loss:.2f} {float(loss)} {loss}")
        return loss

    found = made(step)
    assert any(f"{__file__}:" in note and "taken as 1" in note for note in found.notes)


def test_a_number_that_decides_is_refused_with_its_line():
    def compares(model, optimizer, batch):
        loss = adamw_step(model, optimizer, batch).item()
        if loss < 0.5:
            optimizer.step()

    def asks(model, optimizer, batch):
        if model(batch).mean() > 0:
            optimizer.step()

    with pytest.raises(Refusal, match="decides by a tensor's value") as refusal:
        made(compares)
    assert ".item()" in line_of(refusal)
    with pytest.raises(Refusal, match="decides by a tensor's value") as refusal:
        made(asks)
    assert line_of(refusal) == "if model(batch).mean() > 0:"


def test_what_a_library_reads_is_assumed_and_an_endless_loop_is_refused():
    def masked(model, optimizer, batch):
        mask = nn.Transformer.generate_square_subsequent_mask(4)
        model(batch, mask=mask.to(batch.device)).mean().backward()

    def make():
        model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 1, 16, batch_first=True), 1)
        return model, None, torch.zeros(1, 4, 8)

    assert estimate_step(masked, make=make, gpu=GPU).fits

    def draws(model, optimizer, batch):
        trunc_normal_(batch)

    with pytest.raises(Refusal, match="decides by a tensor's value"):
        made(draws)


def test_a_check_for_infinity_is_no_decision():
    def step(model, optimizer, batch):
        loss = adamw_step(model, optimizer, batch)
        if torch.isnan(loss) or not torch.isfinite(loss).all():
            raise RuntimeError("diverged")

    assert made(step).fits


@pytest.mark.parametrize("kind", ["mask", "nonzero", "numpy"])
def test_sizes_and_arrays_from_values_are_refused_with_their_line(kind):
    def mask(model, optimizer, batch):
        out = model(batch)
        return out[out > 0].mean()

    def nonzero(model, optimizer, batch):
        return model(batch).nonzero()

    def numpy(model, optimizer, batch):
        return model(batch).detach().cpu().numpy()

    step = {"mask": mask, "nonzero": nonzero, "numpy": numpy}[kind]
    with pytest.raises(Refusal) as refusal:
        made(step)
    assert "model(batch)" in line_of(refusal) or "out > 0" in line_of(refusal)


@pytest.mark.parametrize("kind", ["made", "one", "given", "function"])
def test_data_parallel_is_refused_with_its_line(kind, monkeypatch):
    if kind == "given":  # as in a process that has estimated nothing yet, where torch finds no device
        monkeypatch.setattr(sys.modules[nn.DataParallel.__module__], "_get_available_device_type", lambda: None)

    def function(model, optimizer, batch):
        nn.parallel.data_parallel(model, batch, device_ids=[0, 1]).mean().backward()

    def forward(model, optimizer, batch):
        model(batch).mean().backward()

    def make():
        model = network()
        if kind != "function":
            model = nn.DataParallel(model, device_ids=[0] if kind == "one" else None)
        return model, torch.optim.SGD(model.parameters()), torch.zeros(4, WIDTH)

    objects, settings = (make(), {}) if kind == "given" else ((), {"make": make})
    with pytest.raises(Refusal, match="DataParallel.*`module`") as refusal:
        estimate_step(function if kind == "function" else forward, *objects, gpu=GPU, **settings)
    assert line_of(refusal).endswith(".mean().backward()")


def test_an_error_of_the_step_itself_stays_what_it_is():
    def step(model, optimizer, batch):
        return model(batch[:, :3])

    with pytest.raises(RuntimeError, match="reduction dim"):
        made(step)


def test_parameters_on_the_host_are_refused():
    def make():
        model = network().to("cpu")
        return model, torch.optim.SGD(model.parameters()), torch.zeros(1, WIDTH)

    with pytest.raises(Refusal, match="parameters are on cpu"):
        estimate_step(adamw_step, make=make, gpu=GPU)


def test_a_tensor_that_was_left_on_the_host_is_an_error_as_on_a_gpu():
    def make():
        model = network()
        return model, torch.optim.SGD(model.parameters()), torch.zeros(1, WIDTH).to("cpu")

    with pytest.raises(RuntimeError, match="same device.*cpu"):
        estimate_step(adamw_step, make=make, gpu=GPU)
    other = network()
    with pytest.raises(RuntimeError, match="every module"):
        made(lambda model, optimizer, batch: other(batch))
    positions = torch.arange(4)  # of an index: CUDA takes them from the host
    assert made(lambda model, _, batch: (2.0 * model(batch[positions])).mean().backward()).fits


@pytest.mark.parametrize("kind, states", [("AdamW8bit", 2), ("PagedAdamW8bit", 2), ("PagedLion32bit", 4)])
def test_optimizers_of_bitsandbytes_are_built_and_paged_on_the_fake_gpu(kind, states):
    bitsandbytes = pytest.importorskip("bitsandbytes")
    bitsandbytes.optim.GlobalOptimManager.get_instance().initialize()  # it knows weights by ids that may come again

    def make():
        module = torch.nn.Linear(1024, 1024, bias=False)
        return module, getattr(bitsandbytes.optim, kind)(module.parameters()), torch.ones(4, 1024)

    def step(module, optimizer, rows):
        module(rows).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    found = estimate_step(step, make=make, gpu="rtx4090_24gb")
    assert found.parts["optimizer"] == pytest.approx(states * 1024**2, rel=0.02)
    assert any("paged optimizer states" in note for note in found.notes) == kind.startswith("Paged")


def test_lbfgs_is_refused_for_it_decides_by_values():
    def step(model, optimizer, batch):
        def closure():
            optimizer.zero_grad()
            loss = model(batch).mean()
            loss.backward()
            return loss

        return optimizer.step(closure)

    def make():
        model = network()
        return model, torch.optim.LBFGS(model.parameters()), torch.zeros(1, WIDTH)

    for given, settings in ((make(), {}), ((), {"make": make})):
        with pytest.raises(Refusal, match="LBFGS decides"):
            estimate_step(step, *given, gpu=GPU, **settings)


def test_a_second_step_that_computes_nothing_is_refused():
    batches = iter([None])

    def step(model, optimizer, batch):
        for _ in batches:
            adamw_step(model, optimizer, batch)

    with pytest.raises(Refusal, match="called twice"):
        made(step)


def test_what_cannot_be_copied_is_refused():
    model = network()
    optimizer = torch.optim.SGD(model.parameters())
    with pytest.raises(Refusal, match="generator.*make="):
        estimate_step(adamw_step, model, optimizer, (batch for batch in [torch.zeros(1, WIDTH)]), gpu=GPU)


@pytest.mark.parametrize(
    "changed,words",
    [
        ({"step": network()}, "first argument must be the step"),
        ({"optimizer": 1}, "either the module"),
        ({"margin": -0.1}, "margin=-0.1"),
        ({"memory_limit_gib": 0}, "memory_limit_gib=0"),
        ({"gpu": {"name": GPU, "memory_bytes": "40GB"}}, "memory_bytes='40GB' must be a number"),
        ({"gpu": {"name": GPU, "memory_bytes": None}}, "memory_bytes=None must be a number"),
        ({"gpu": {"name": GPU, "memory_bytes": -1}}, "memory_bytes=-1 is too small"),
        ({"gpu": {"name": GPU, "capability": "8"}}, "capability=8 cannot be read"),
        ({"gpu": {"name": GPU, "capability": 8.9}}, "capability=8.9 must be text"),
    ],
    ids=str,
)
def test_arguments_that_mean_nothing_are_refused(changed, words):
    with pytest.raises(Refusal, match=re.escape(words)):
        made(**changed)


def test_importing_it_imports_no_torch():
    code = "import sys; from legroom import estimate_step; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


# --- the examples -----------------------------------------------------------------------------------


@pytest.fixture
def example(monkeypatch):
    """example(name) -> a module of examples/."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module


def test_plain_loop(example):
    small, large = example("plain_loop").main(width=16, blocks=1, side=64, batches=(2, 8))
    assert small.parts["activations"] < large.parts["activations"]


def test_vision_transformer(example):
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    found = example("vision_transformer").main(size=2, image_size=32, **sizes)
    assert all(one.fits for one in found.values())
    assert any("vision_transformer.py" in note for note in found["l4_24gb"].notes), "it prints its loss"


def test_lora_finetune(example):
    pytest.importorskip("peft")
    sizes = {"vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    found = example("lora_finetune").main(tokens=32, **sizes, **heads)
    assert 0 < found.parts["optimizer"] < found.parts["parameters"] / 2


def test_lightning_like(example):
    found = example("lightning_like").main(width=32, pixels=256, batch=8)
    assert found.fits and found.parts["optimizer"] > found.parts["parameters"]


def test_trainer_subclass(example):
    found = example("trainer_subclass").main(batch=2, tokens=32, n_layer=2, n_embd=32, n_head=2, vocab_size=512)
    assert found.fits and found.parts["optimizer"] > 0
    assert {phase for phase, _ in found.timeline} == {"forward", "backward", "step"}


def test_every_example_has_its_test():
    names = {path.stem for path in EXAMPLES.glob("*.py")}
    assert names == {name.removeprefix("test_") for name in globals() if name.removeprefix("test_") in names}


def test_inference_under_autocast_takes_six_bytes_a_parameter():
    """The guides' figure: weights in fp32, and in 16 bits what autocast has cast. Without gradients, states and
    activations; evaluation in 16 bits takes two."""

    @torch.no_grad()
    def answers(model, _, batch):
        with torch.autocast("cuda", torch.float16, enabled=next(model.parameters()).dtype == torch.float32):
            return model(batch)

    taken = []
    for dtype in (torch.float32, torch.float16):
        model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(8)))
        parts = estimate_step(answers, model.to(dtype), None, torch.ones(4, WIDTH, dtype=dtype), gpu=GPU).parts
        assert parts["gradients"] == parts["optimizer"] == 0
        taken.append(sum(parts.values()) / (8 * WIDTH * (WIDTH + 1)))
    assert taken == pytest.approx([6, 2], rel=0.01)


@pytest.mark.parametrize("row", [0, 5])
def test_the_t5_table_of_the_guides_is_what_its_program_predicts(row):
    page = (ROOT / "docs/guides.md").read_text()
    lines = re.findall(
        r"^\| `(\w+)`, (\d+) \| (\d+) \| (yes|no) \| ([\d.]+) \| ([\d.]+) \| (\S+) to (\S+) \|$", page, re.M
    )
    assert len(lines) == 7 and all(float(low) <= float(said) <= float(high) for *_, said, _, low, high in lines)
    gpu, batch, tokens, tf32, _, *figures = lines[row]
    before, program = torch.backends.cuda.matmul.allow_tf32, {}
    exec(page.partition("```python\n")[2].partition("```")[0], program)
    try:
        seen = program["predicted"](gpu, int(batch), int(tokens), tf32 == "yes")
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
    seconds = (seen.step_seconds, seen.step_seconds_high, seen.step_seconds_low)
    assert [int(batch) / each for each in seconds] == pytest.approx([float(each) for each in figures], rel=0.02)
