"""The training steps of published_speed.csv on the fake device, for their operations.

What differs from a step of this repository is written down here with its source. Lambda's runs: NVIDIA's own BERT code
(attention from single operations with a mask that is always added), apex O2 with a fused optimizer in `fp16`, an
optimizer in a Python loop over the weights in `fp32`. NeuSight's: the backward pass alone of Hugging Face models, whose
gradients are never dropped. The Llama rows: pure bf16.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import transformers

from legroom.estimator.fake_gpu.device import FakeDevice
from legroom.estimator.fake_gpu.op_trace import OpTrace
from legroom.estimator.speed.operation_names import OPTIMIZER
from legroom.estimator.speed.operations import Operation, Tally

ITERATIONS = 3  # the first creates gradients and states
QUESTION_ANSWERING, PRETRAINING, CAUSAL = "BertForQuestionAnswering", "BertForPreTraining", "AutoModelForCausalLM"
# (bytes a weight moves, elements in all lists) of apex's fused steps: gradients to fp32, their norm, clipping; then
# Adam on the fp32 weights, and the copy in 16 bits.
APEX_BYTES = (6, 4, 8, 28, 6)


class BertAdam(torch.optim.Optimizer):
    """Adam as NVIDIA's BERT code has it in fp32: about ten operations for each weight, one weight after the other."""

    def __init__(self, weights: Any, lr: float = 1e-3):
        super().__init__(weights, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                state = self.state[weight]
                if not state:
                    state["mean"], state["square"] = torch.zeros_like(weight), torch.zeros_like(weight)
                state["mean"].mul_(0.9).add_(weight.grad, alpha=0.1)
                state["square"].mul_(0.999).addcmul_(weight.grad, weight.grad, value=0.001)
                update = state["mean"] / (state["square"].sqrt() + 1e-6)
                update.add_(weight, alpha=0.01)
                weight.add_(-(update * group["lr"]))


def step_of(row: dict[str, str]) -> tuple[Tally, str]:
    """(operations that a row's seconds are of, the option of `precision` that they run in)."""
    precision = precision_of(row)
    tally = _tally(row["model"], row["objective"], int(row["batch"]), int(row["seq_len"]), precision)
    return (
        (Tally({"backward": tally.counts["backward"]}, _backward_calls(tally)), precision)
        if _backward_alone(row)
        else (tally, precision)
    )


def precision_of(row: dict[str, str]) -> str:
    """The option of `precision` of a row. Lambda's `fp32` is TF32 where the hardware has it (Ampere and later)."""
    if row["precision"].startswith("fp16"):
        return "fp16"
    if "bf16" in row["precision"]:
        return "bf16_pure"
    return "tf32" if "TF32 on" in row["precision"] and "V100" not in row["gpu"] and "8000" not in row["gpu"] else "fp32"


def _backward_alone(row: dict[str, str]) -> bool:
    return row["how"].startswith("backward pass alone")


def _backward_calls(tally: Tally) -> Any:
    return type(tally.calls)({"backward": tally.calls["backward"]})


@functools.cache
def _tally(model: str, objective: str, batch: int, length: int, precision: str) -> Tally:
    if model.startswith("bert-base"):
        return _bert_squad(batch, length, precision)
    if model.startswith("bert-large"):
        return _neusight(PRETRAINING, batch, length)
    if model.startswith("gpt2-large"):
        return _neusight(CAUSAL, batch, length)
    return _llama(objective, batch, length)


def _bert_squad(batch: int, length: int, precision: str) -> Tally:
    dtype = torch.float16 if precision == "fp16" else torch.float32
    config = transformers.BertConfig()  # its defaults are bert-base-uncased's sizes

    def inputs() -> dict[str, torch.Tensor]:
        tokens = torch.zeros(batch, length, dtype=torch.long)
        positions = torch.zeros(batch, dtype=torch.long)
        mask = torch.zeros(batch, 1, 1, length, dtype=dtype)
        return {"input_ids": tokens, "token_type_ids": torch.zeros_like(tokens), "attention_mask": mask} | {
            "start_positions": positions,
            "end_positions": positions.clone(),
        }

    def step(network, optim, batch_of):
        network(**batch_of).loss.backward()
        if dtype == torch.float32:
            torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optim.step()
        optim.zero_grad()

    tally = _simulate(QUESTION_ANSWERING, config, "eager", dtype, inputs, step)
    if dtype == torch.float16:
        weights = 109_000_000
        for width in APEX_BYTES:
            tally.put(Operation("apex", OPTIMIZER, "fp32", 0, weights * width, 4), "step")
    return tally


def _neusight(kind: str, batch: int, length: int) -> Tally:
    if kind == PRETRAINING:
        config = transformers.BertConfig(
            hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096
        )
    else:
        config = transformers.GPT2Config(n_embd=1280, n_layer=36, n_head=20)

    def inputs() -> dict[str, torch.Tensor]:
        tokens = torch.zeros(batch, length, dtype=torch.long)
        labels = {"labels": tokens.clone()}
        if kind == PRETRAINING:
            labels["next_sentence_label"] = torch.zeros(batch, dtype=torch.long)
        return {"input_ids": tokens} | labels

    def step(network, optim, batch_of):  # gradients are never dropped
        network(**batch_of).loss.backward()

    return _simulate(kind, config, "eager", torch.float32, inputs, step)


def _llama(objective: str, batch: int, length: int) -> Tally:
    config = transformers.LlamaConfig(
        hidden_size=2048,
        num_hidden_layers=16,
        num_attention_heads=32,
        num_key_value_heads=8,
        intermediate_size=8192,
        vocab_size=128256,
        head_dim=64,
        max_position_embeddings=131072,
        tie_word_embeddings=True,
    )
    trains = "backward" in objective

    def inputs() -> dict[str, torch.Tensor]:
        tokens = torch.zeros(batch, length, dtype=torch.long)
        return {"input_ids": tokens, "labels": tokens.clone()}

    def step(network, optim, batch_of):
        if not trains:
            with torch.no_grad():
                network.eval()(**batch_of)
            return
        network.config.use_cache = False
        if not network.is_gradient_checkpointing:
            network.gradient_checkpointing_enable({"use_reentrant": False})
        network(**batch_of).loss.backward()
        if "optimizer" in objective:
            optim.step()
        optim.zero_grad()

    return _simulate(CAUSAL, config, "sdpa", torch.bfloat16, inputs, step, (10, 0))


def _simulate(
    kind: str, config: Any, attention: str, dtype: torch.dtype, inputs: Any, step: Any, capability=(8, 0)
) -> Tally:
    """The operations of the last of a few iterations. capability: attention's kernel depends on it."""
    with FakeDevice(capability) as fake:
        with fake.building():
            auto = getattr(transformers, kind)
            if kind == CAUSAL:
                network = auto.from_config(config, attn_implementation=attention, dtype=dtype)
            else:
                config._attn_implementation = attention
                network = auto(config).to(dtype)
            network.tie_weights()
            batch_of = inputs()
        network.train()
        loop = kind == QUESTION_ANSWERING
        optim = BertAdam(network.parameters()) if loop else torch.optim.AdamW(network.parameters(), foreach=True)
        trace = OpTrace(fake, network, optim)
        for _ in range(ITERATIONS):
            with trace:
                step(network, optim, batch_of)
        return trace.step_tally(1)
