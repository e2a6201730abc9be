"""The ledger: parts that sum to the peak, numbers worked out by hand, and PyTorch's own count of allocations.

B batch, T tokens, D width, F feed-forward, V vocabulary.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import transformers
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint

from legroom.estimator.ledger.kinds import OPTIMIZER, OTHER
from legroom.estimator.ledger.memory_ledger import MemoryLedger
from legroom.estimator.ledger.op_flops import operation_flops
from legroom.estimator.ledger.storage_log import StorageLog

FOUR = 4  # bytes of a 32-bit float
FIVE = ("parameters_bytes", "gradients_bytes", "optimizer_bytes", "activations_bytes", "other_bytes")
WEIGHTS = 8 * 16 + 16 * 4  # of the little network


class Little(torch.nn.Module):
    """x (32, 8) -> hidden (32, 16) -> relu -> (32, 4); its loss is the sum."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = torch.nn.Linear(8, 16, bias=False)
        self.second = torch.nn.Linear(16, 4, bias=False)

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))


class Deep(torch.nn.Module):
    """Four layers (32, 8) -> relu -> (32, 8), whose activations are kept or computed again."""

    def __init__(self, recompute: bool):
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.ModuleList([torch.nn.Linear(8, 8, bias=False) for _ in range(4)])
        self.recompute = recompute

    def forward(self, x):
        return checkpoint(self.through, x, use_reentrant=False) if self.recompute else self.through(x)

    def through(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x


@pytest.fixture
def x():
    return torch.ones(32, 8)


def step(model, optimizer, *batches):
    for batch in batches:
        model(batch).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def ready(model=None, kind=torch.optim.AdamW, **settings):
    """A model, and an optimizer that has its states."""
    model = model or Little()
    optimizer = kind(model.parameters(), lr=0.01, **settings)
    step(model, optimizer, torch.ones(32, 8))
    return model, optimizer


def counted(model, optimizer, *batches) -> MemoryLedger:
    ledger = MemoryLedger(model, optimizer, "cpu")
    with ledger:
        step(model, optimizer, *batches)
    return ledger


# --- by hand ---------------------------------------------------------------------------------------


def test_the_parts_of_a_little_network_by_hand(x):
    """The peak is where relu's backward makes the gradient of the hidden layer."""
    parts = counted(*ready(), x).parts()
    weights, hidden = WEIGHTS * FOUR, 32 * 16 * FOUR
    assert parts["parameters_bytes"] == parts["weights_bytes"] == weights
    assert parts["optimizer_bytes"] == 2 * weights + 2 * FOUR  # two moments, and a step counter a weight
    assert parts["activations_bytes"] == hidden  # relu's result; its input is not kept
    assert parts["gradients_bytes"] == 16 * 4 * FOUR  # the second layer's alone are there yet
    # The batch; hidden gradients behind and before relu; the loss and its gradient of one number each.
    assert parts["other_bytes"] == 32 * 8 * FOUR + 2 * hidden + 2 * FOUR
    assert parts["peak_tensor_bytes"] == sum(parts[name] for name in FIVE) and parts["peak_phase"] == "backward"
    assert parts["largest_bytes"]["gradients"] == weights


@pytest.mark.parametrize(
    "kind,settings,each",
    [
        (torch.optim.SGD, {}, 0),
        (torch.optim.SGD, {"momentum": 0.9}, 1),
        (torch.optim.AdamW, {}, 2),
        (torch.optim.AdamW, {"amsgrad": True}, 3),
    ],
    ids=str,
)
def test_states_by_hand(x, kind, settings, each):
    parts = counted(*ready(kind=kind, **settings), x).parts()
    assert parts["optimizer_bytes"] == pytest.approx(each * WEIGHTS * FOUR, abs=2 * FOUR)


def test_a_network_in_16_bits_takes_half(x):
    model, optimizer = Little().bfloat16(), None
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    step(model, optimizer, x.bfloat16())
    parts = counted(model, optimizer, x.bfloat16()).parts()
    assert parts["parameters_bytes"] == parts["optimizer_bytes"] == parts["largest_bytes"]["gradients"] == WEIGHTS * 2


def test_autocasts_copies_are_copies_of_weights(x):
    """4 bytes and 2 bytes: the guide's 6."""
    model, optimizer = ready()
    ledger = MemoryLedger(model, optimizer, "cpu")
    with ledger:
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(x).sum()
        loss.backward()
        optimizer.step()
    largest = ledger.parts()["largest_bytes"]
    assert (largest["parameters"], largest["weight_copies"]) == (WEIGHTS * 4, WEIGHTS * 2)
    assert ledger.parts()["weights_bytes"] == WEIGHTS * 4


def most_in_forward(ledger) -> int:
    """The most that activations born in the forward pass take."""
    live = most = 0
    for entry, sign in ledger.log.events:
        if entry.kind == "activations" and entry.phase == "forward":
            live += sign * entry.bytes
            most = max(most, live)
    return most


def test_recomputed_activations_are_not_kept(x):
    """Only the batch is, which is no activation. In the backward pass all four are there again."""
    kept, recomputed = (counted(*ready(Deep(recompute)), x) for recompute in (False, True))
    assert (most_in_forward(kept), most_in_forward(recomputed)) == (4 * 32 * 8 * FOUR, 0)
    assert recomputed.parts()["largest_bytes"]["activations"] == 4 * 32 * 8 * FOUR
    assert recomputed.model_flops == kept.model_flops == (3 * 4 - 1) * 2 * 32 * 8 * 8


def test_accumulated_gradients_are_there_during_the_second_pass(x):
    model, optimizer = ready()
    once, twice = counted(model, optimizer, x).parts(), counted(model, optimizer, x, x).parts()
    assert once["gradients_bytes"] < WEIGHTS * FOUR == twice["gradients_bytes"]
    assert twice["peak_tensor_bytes"] > once["peak_tensor_bytes"]


def test_gradients_from_before_the_step_are_gradients(x):
    model, optimizer = ready()
    model(x).sum().backward()
    parts = counted(model, optimizer, x).parts()
    assert parts["gradients_bytes"] == WEIGHTS * FOUR


def test_buffers_and_the_batch_are_other():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4, bias=False))
    model.register_buffer("table", torch.ones(1000))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch = torch.ones(500, 4)
    parts = counted(model, optimizer, batch).parts()
    assert parts["activations_bytes"] == 0
    assert parts["other_bytes"] >= 1000 * FOUR + 500 * 4 * FOUR


def test_tied_weights_count_once():
    model = torch.nn.Sequential(torch.nn.Linear(8, 8, bias=False), torch.nn.Linear(8, 8, bias=False))
    model[1].weight = model[0].weight
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    assert counted(model, optimizer, torch.ones(2, 8)).parts()["weights_bytes"] == 64 * FOUR


def test_tensors_of_another_device_are_not_counted(x):
    ledger = MemoryLedger(*ready(), "cuda")
    with ledger:
        step(ledger.model, ledger.optimizer, x)
    assert ledger.parts()["peak_tensor_bytes"] == 0 and ledger.parts()["peak_phase"] is None


# --- it leaves no trace ----------------------------------------------------------------------------


@pytest.mark.parametrize("breaks", [False, True])
def test_no_hook_is_left_behind(x, breaks):
    model, optimizer = ready()
    ledger = MemoryLedger(model, optimizer, "cpu")
    try:
        with ledger:
            step(model, optimizer, x)
            if breaks:
                raise RuntimeError("in the middle of the step")
    except RuntimeError:
        assert breaks
    entries = len(ledger.log.events)
    step(model, optimizer, x)
    del x
    assert [entry for entry, sign in ledger.log.events[entries:] if sign > 0] == []
    assert not model._forward_pre_hooks and not any(w._post_accumulate_grad_hooks for w in model.parameters())


def test_counting_changes_no_result(x):
    trained = []
    for count in (False, True):
        model, optimizer = ready()
        counted(model, optimizer, x) if count else step(model, optimizer, x)
        trained.append([weight.clone() for weight in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*trained))


# --- PyTorch's own count ---------------------------------------------------------------------------


def allocated_bytes(profiler) -> list[int]:
    """What torch's profiler saw: bytes of each allocation, and minus those of each free, in order. Its public events
    have no order of allocations."""
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    return [event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]


def test_allocated_bytes():
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        first = torch.empty(1000, dtype=torch.uint8)
        second = torch.empty(3000, dtype=torch.uint8)
        del first, second
    assert allocated_bytes(found) == [1000, 3000, -1000, -3000]


def allocated(work) -> int:
    """The most that PyTorch's CPU allocator gave out at once, beyond what was there before."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        work()
    live = most = 0
    for size in allocated_bytes(found):
        live += size
        most = max(most, live)
    return most


def bytes_before(model, optimizer, *tensors) -> int:
    held = [*model.parameters(), *model.buffers(), *tensors]
    held += [value for state in optimizer.state.values() for value in state.values() if isinstance(value, torch.Tensor)]
    return sum(tensor.numel() * tensor.element_size() for tensor in held)


@pytest.mark.parametrize("kind,settings", [(torch.optim.AdamW, {}), (torch.optim.SGD, {"momentum": 0.9})], ids=str)
def test_the_peak_of_a_little_network_is_what_was_allocated(x, kind, settings):
    model, optimizer = ready(kind=kind, **settings)
    expected = bytes_before(model, optimizer, x) + allocated(lambda: step(model, optimizer, x))
    assert counted(model, optimizer, x).parts()["peak_tensor_bytes"] == expected


def test_a_result_that_no_backward_pass_follows_is_freed(x):
    """exp saves its own result: DoRA throws such a norm away in each forward pass."""
    model, optimizer = ready()

    def throw_away(times):
        for _ in range(times):
            (model.first.weight * 1.0).exp().detach()
        step(model, optimizer, x)

    peaks = []
    for times in (1, 50):
        with MemoryLedger(model, optimizer, "cpu") as ledger:
            throw_away(times)
        peaks.append(ledger.parts()["peak_tensor_bytes"])
    assert peaks[0] == peaks[1]


SIZES = dict(
    num_hidden_layers=2,
    hidden_size=64,
    num_attention_heads=2,
    intermediate_size=128,
    vocab_size=128,
    max_position_embeddings=64,
)
TRANSFORMERS = {
    "bert": lambda: transformers.BertForSequenceClassification(
        transformers.BertConfig(**SIZES, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    ),
    "gpt2": lambda: transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            n_layer=2,
            n_embd=64,
            n_head=2,
            n_inner=128,
            vocab_size=128,
            n_positions=64,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
        )
    ),
    "llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES, num_key_value_heads=1)),
}


@pytest.mark.parametrize("recompute", [False, True], ids=["kept", "recomputed"])
@pytest.mark.parametrize("family", TRANSFORMERS)
def test_the_peak_of_a_transformer_is_what_was_allocated(family, recompute):
    """Within 1 %: an operation's own scratch space is no tensor."""
    torch.manual_seed(0)
    model = TRANSFORMERS[family]().train()
    model.config.use_cache = False
    if recompute:
        enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
        enable({"use_reentrant": False})
    optimizer = torch.optim.AdamW(model.parameters())
    ids = torch.randint(0, 128, (8, 64))
    labels = torch.zeros(8, dtype=torch.long) if family == "bert" else ids

    def work():
        model(input_ids=ids, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    work()
    expected = bytes_before(model, optimizer, ids, *([labels] if labels is not ids else [])) + allocated(work)
    ledger = MemoryLedger(model, optimizer, "cpu")
    with ledger:
        work()
    assert ledger.parts()["peak_tensor_bytes"] == pytest.approx(expected, rel=0.01)


# --- in a job --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        ["recipe=trainer"],
        ["recipe=accelerate"],
        ["precision=bf16"],
        ["precision=bf16_pure"],
        ["accumulation=x2"],
        ["checkpointing=full"],
        ["optim=adafactor"],
        ["optim=adam8bit", "model.width=64"],
        ["model=llama_tiny"],
        ["model=gpt2_tiny", "data=source", "train.max_grad_norm=0"],
    ],
    ids=" ".join,
)
def test_the_five_parts_sum_to_the_peak(train, words):
    memory = train(*words).record.memory
    parts = [getattr(memory, name) for name in FIVE]
    assert sum(parts) == memory.peak_tensor_bytes > 0 and all(isinstance(part, int) and part >= 0 for part in parts)
    assert memory.weights_bytes > 0 and memory.peak_phase in ("forward", "backward", "step")
    for name, part in zip(FIVE, parts):
        copies = memory.largest_bytes["weight_copies"] if name == "parameters_bytes" else 0
        assert part <= memory.largest_bytes[name.removesuffix("_bytes")] + copies


def test_a_larger_batch_takes_more_activations_and_nothing_else(train):
    words = ["model=gpt2_tiny", "model.layers=2", "data.samples=16"]
    small, large = (train(*words, f"batch.per_device={batch}").record.memory for batch in (2, 8))
    assert large.largest_bytes["activations"] == pytest.approx(4 * small.largest_bytes["activations"], rel=0.02)
    for kind in ("parameters", "gradients", "optimizer"):
        assert large.largest_bytes[kind] == small.largest_bytes[kind]


def test_without_a_ledger_nothing_is_counted(train):
    run = train("measure.ledger=false")
    assert run.record.memory.peak_tensor_bytes is None and run.record.speed.model_flops_per_step is None
    assert run.record.memory.parameter_count > 0


def test_the_counted_step_is_counted_nowhere_else(train):
    with_it, without = (train(f"measure.ledger={value}").record for value in ("true", "false"))
    assert with_it.training == without.training and with_it.speed.measured_steps == without.speed.measured_steps
    assert with_it.evaluation.loss == without.evaluation.loss


# --- FLOPs -----------------------------------------------------------------------------------------


def test_the_flops_of_a_little_network_by_hand(x):
    """Two a weight and row going forward, as many for the gradient of the weights, and of what the layer is given,
    where that is no input of the whole network."""
    by_hand = 3 * 2 * 32 * WEIGHTS - 2 * 32 * 8 * 16
    assert counted(*ready(), x).model_flops == by_hand
    assert counted(*ready(), x, x).model_flops == 2 * by_hand


def test_frozen_weights_have_no_gradient_to_compute(x):
    """Below the first trained weight there is no backward pass at all."""
    first, second = 2 * 32 * 8 * 16, 2 * 32 * 16 * 4
    for trained, by_hand in ((["second"], first + 2 * second), (["first"], 2 * first + 2 * second)):
        model = Little()
        for name in {"first", "second"} - set(trained):
            getattr(model, name).requires_grad_(False)
        optimizer = torch.optim.AdamW(weight for weight in model.parameters() if weight.requires_grad)
        step(model, optimizer, x)
        assert counted(model, optimizer, x).model_flops == by_hand


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_a_frozen_transformer_with_a_trained_head_takes_its_forward_pass(attention):
    """As with adapters: the trunk is passed through, and no gradient of its weights is computed."""
    config = transformers.AutoConfig.for_model(
        "gpt2", n_layer=2, n_embd=32, n_head=2, n_inner=64, vocab_size=64, n_positions=32, tie_word_embeddings=False
    )
    network = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=attention)
    ids = torch.arange(32).view(1, 32)
    layers = 2 * (2 * 32 * (4 * 32 * 32 + 2 * 32 * 64) + 2 * 2 * 32 * 32 * 32)
    head = 2 * 32 * 32 * 64

    def flops() -> int:
        optimizer = torch.optim.SGD([weight for weight in network.parameters() if weight.requires_grad])
        ledger = MemoryLedger(network, optimizer, "cpu")
        with ledger:
            network(ids, labels=ids).loss.backward()
            optimizer.step()
        return ledger.model_flops

    assert flops() == 3 * (layers + head)
    network.requires_grad_(False)
    network.lm_head.requires_grad_(True)
    assert flops() == layers + 2 * head
    network.transformer.wte.requires_grad_(True)  # everything above passes its gradient down
    assert flops() == 2 * layers + 3 * head + 2 * 2 * 2 * 32 * 32 * 32


@pytest.mark.parametrize("key_heads", [1, 2, 4])
def test_heads_that_share_keys_do_the_work_of_all(key_heads):
    """Grouped-query attention saves memory and no arithmetic."""
    query = torch.zeros(2, 4, 8, 16)
    key = value = torch.zeros(2, key_heads, 8, 16)
    attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    whole = operation_flops(attention, (query, key, value), {}, None)
    assert whole == 2 * (2 * 2 * 4 * 8 * 8 * 16)


B, T, D, F, V = 2, 32, 32, 64, 512
ATTENTION = 2 * 2 * B * T * T * D  # scores and their sum over values, all heads together


@pytest.mark.parametrize(
    "model,forward",
    [
        ("gpt2_tiny", 2 * B * T * (4 * D * D + 2 * D * F + D * V) + ATTENTION),
        ("bert_tiny", 2 * B * T * (4 * D * D + 2 * D * F) + ATTENTION + 2 * B * (D * D + D * 2)),  # pooler, two classes
        (
            "llama_tiny",
            2 * B * T * (2 * D * D + 2 * D * D // 2 + 3 * D * F + D * V) + ATTENTION,
        ),  # half as many key heads
    ],
)
def test_the_flops_of_a_transformer_by_hand(train, model, forward):
    assert train(f"model={model}").record.speed.model_flops_per_step == pytest.approx(3 * forward, rel=1e-3)


def test_the_flops_are_about_six_a_parameter_and_token(train):
    """Kaplan et al. 2020 (arXiv 2001.08361), table 1, for all weights but the embedding; attention comes on top."""
    record = train("model=llama_tiny", "model.layers=2", "model.width=128", "model.feed_forward=384").record
    weights = record.memory.parameter_count - 512 * 128
    ratio = record.speed.model_flops_per_step / (6 * weights * B * T)
    assert 1 < ratio < 1.15


def test_the_flops_follow_the_effective_batch(train):
    words = ["model=gpt2_tiny", "data.samples=16"]
    once, split = (
        train(*words, *more).record.speed.model_flops_per_step
        for more in (["batch.per_device=4"], ["batch.per_device=1", "accumulation=x4"])
    )
    assert once == pytest.approx(split, rel=1e-3)


def test_the_peak_of_a_step_may_be_at_its_very_beginning():
    events = [(SimpleNamespace(bytes=size), sign) for size, sign in [(5, 1), (10, 1), (10, -1), (3, 1)]]
    assert StorageLog.peak_index(SimpleNamespace(events=events, step_start=2)) == 1
    assert StorageLog.peak_index(SimpleNamespace(events=events, step_start=3)) == 3


def test_paged_states_are_logged():
    log, paged = StorageLog("cuda"), torch.ones(4)
    assert log.record(torch.ones(4), OPTIMIZER) is None
    paged.is_paged = True
    entry = log.record(paged, OPTIMIZER)
    assert entry.paged and entry.bytes == 16 and log.events == [(entry, +1)]


def test_when_gloo_frees_its_buffer_does_not_count():
    """gloo reduces a copy of its input, which its thread holds until it gets to run: longer on a busy machine."""
    ledger = MemoryLedger(model := Little(), torch.optim.SGD(model.parameters()), "cpu")
    given, part, buffer = torch.ones(8), torch.ones(4), torch.ones(8)
    for tensor in (given, part):
        ledger.log.record(tensor, OTHER)
    ledger.before(torch.ops.c10d._reduce_scatter_base_.default, [part, given])
    ledger.before(torch.ops.aten.split.Tensor, [buffer])
    ledger.before(torch.ops.aten.copy_.default, [part, buffer[:4]])
    events = [(entry.bytes, sign) for entry, sign in ledger.log.events]
    assert events == [(32, +1), (16, +1), (32, +1), (32, -1)]
    del buffer
    assert len(ledger.log.events) == len(events)  # freed once


def test_every_gloo_buffer_counts():
    log, count = StorageLog("cpu"), 50
    for _ in range(count):
        log.add_passing(torch.ones(8), OTHER)
    assert [sign for _, sign in log.events] == [+1, -1] * count


def test_sparse_tensors_are_not_logged():
    log, tensor = StorageLog("cpu"), torch.ones(4)
    assert log.record(torch.eye(2).to_sparse(), OTHER) is None and log.events == []
    log.record(tensor, OTHER)
    log.resized(tensor.untyped_storage(), 16, OPTIMIZER)
    log.resized(torch.ones(4, device="meta").untyped_storage(), 0, OPTIMIZER)
    assert [(entry.bytes, sign) for entry, sign in log.events] == [(16, 1)]
    log.resized(tensor.untyped_storage(), 8, OPTIMIZER)
    assert [(entry.kind, sign) for entry, sign in log.events] == [(OTHER, 1), (OTHER, -1), (OPTIMIZER, 1)]


def test_an_operation_of_unknown_flops_leaves_those_of_the_step_unknown(x):
    """A number that lacks some of it would be taken for the whole."""
    ledger = MemoryLedger(Little(), torch.optim.SGD([torch.ones(1)]), torch.device("cpu"))
    ledger.log.phase.begin_forward()
    ledger.model_flops = 1
    ledger.after(torch.ops.aten.mm.default, (x, x), {}, x, None)  # 32 x 8 times 32 x 8
    assert ledger.model_flops is None
    ledger.after(torch.ops.aten.mm.default, (x, x.T), {}, x @ x.T, None)
    assert ledger.model_flops is None


@pytest.mark.parametrize("outliers", [None, [], [1, 5]])
def test_a_product_in_8_bits_is_that_of_its_parts(outliers):
    pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed: pip install legroom[8bit]")
    from bitsandbytes import functional

    from legroom.estimator.ledger import compound_ops

    torch.manual_seed(0)
    rows, weight = torch.randn(4, 16).half(), torch.randn(8, 16).half()
    rows[:, outliers or []] *= 20
    kept = rows.clone()
    kept[:, outliers or []] = 0
    (quantised, row_scales, _), (in_8, scales, _) = (functional.int8_vectorwise_quant(each) for each in (kept, weight))
    chosen = None if outliers is None else torch.tensor(outliers, dtype=torch.int64)
    given = (rows, quantised, in_8, row_scales, scales, chosen)
    product, columns = compound_ops.PARTS["int8_mixed_scaled_mm"](*given)
    whole, theirs = torch.ops.bitsandbytes.int8_mixed_scaled_mm.default(*given)
    torch.testing.assert_close(product, whole)
    assert columns.shape == theirs.shape and columns.numel() == 4 * len(outliers or [])
    torch.testing.assert_close(product.float(), rows.float() @ weight.float().T, rtol=0.05, atol=1.5)


def test_weights_are_logged_in_the_order_of_the_model():
    """The allocator's blocks lie in the order in which a model is moved, whichever weights an optimizer knows."""
    model = Deep(recompute=False)
    model.layers[2] = torch.nn.Linear(8, 16, bias=False)
    optimizer = torch.optim.SGD(model.layers[2].parameters(), lr=0.1)
    ledger = MemoryLedger(model, optimizer, "cpu")
    ledger.attribution.mark_model_and_optimizer()
    assert [entry.bytes for entry, _ in ledger.log.events] == [weight.nbytes for weight in model.parameters()]
