"""Evaluation after training, the same for both recipes: loss, and the scores of the task."""

import contextlib
import itertools
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from transformers import TrainingArguments

from legroom.compat import accelerate_private
from legroom.config import Config
from legroom.data import data_loader
from legroom.data.data_loader import BatchLoader
from legroom.data.dataset import Data
from legroom.parallelism import fsdp, unwrap
from legroom.ranks import collectives
from legroom.records.messages import Progress
from legroom.records.record import Evaluation
from legroom.training import scores
from legroom.training.step import labels_in, labels_of

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}  # eval.precision -> dtype
FP32_BUFFERS = ("inv_freq", "embed_positions", "pos_encoding")  # positions, which from_pretrained does not round either


def evaluate(
    cfg: Config,
    args: TrainingArguments,
    loop: Any,
    data: Data,
    progress: Progress,
    between: Callable[[], None] = lambda: None,
) -> Evaluation:
    """Mean loss over the evaluation split, and what `scores` has for the task.

    With `eval.precision` the whole model is cast for the evaluation and cast back, which rounds the weights, though no
    buffer: save before. loop: a `Loop` of either recipe. progress: is sent the batches that are done. between: called
    before each batch, of which all ranks have the same number.
    """
    device = loop.accelerator.device
    best_spans: list[tuple] = []

    def advance(batches_done: int) -> None:
        progress.advance(batches_done)
        between()

    def collect_answers(batch: data_loader.Batch, output: Any) -> None:
        if data.answers is None:
            return
        starts = output.start_logits.float().cpu()
        ends = output.end_logits.float().cpu()
        for row, start, end in zip(batch.indices, starts, ends):
            best_spans.append(data.answers.best(row, start, end))

    with evaluating(cfg, loop) as forward:
        began = time.perf_counter()
        loader = data_loader.batch_loader(data, data.eval, args, cfg.eval.batch, shuffle=False)
        progress.enter("eval", "evaluating", total=len(loader))
        sums = totals(forward, loader, data.task, device, advance, collect_answers)
    if collectives.is_distributed():
        # Ranks that have the same rows (tensor and context parallelism) have each counted them.
        sums = collectives.all_reduce_sum(sums, device) * data.ranks / collectives.world_size()
    loss_sum, count, samples, *score_sums = sums
    loss = float(loss_sum / count)
    result = Evaluation(samples=int(samples), loss=loss, seconds=time.perf_counter() - began)
    result.available_samples = data.eval_available or len(data.eval)
    if math.isnan(loss):  # logits that are NaN would score like an answer that is always the same
        return result
    scores.enter(result, data.task, [float(number) for number in score_sums])
    if data.task == "classification":
        labels = torch.tensor(data.eval.with_format(None)["labels"][:])
        result.most_frequent_share = int(labels.bincount().max()) / len(labels)
    if data.answers is not None:
        all_spans = itertools.chain.from_iterable(collectives.all_gather(best_spans))
        result.f1, result.exact_match = scores.squad(data.answers.pairs(list(all_spans)))
    return result


def not_a_number(cfg: Config) -> str:
    """A warning for an evaluation whose loss is not a number, of a model whose weights are."""
    reason = "perhaps no row of the evaluation split has a label"
    if cfg.eval.precision == "fp16":
        reason = "the numbers of its forward pass are too large for eval.precision=fp16: type eval.precision=bf16"
    elif cfg.precision.compute_dtype == "float16":
        reason = "the numbers of its forward pass are too large for fp16: type eval.precision=bf16"
    return f"the evaluation says nothing, for its loss is not a number, though the weights are: {reason}."


@contextlib.contextmanager
def evaluating(cfg: Config, loop: Any) -> Iterator[Any]:
    """The model as it is evaluated, without gradients and in `eval.precision`: a function of a batch. loop: of either
    recipe."""
    model = unwrap.inner_model(loop.accelerator, loop.model)
    dtypes = [(weight, weight.dtype) for weight in model.parameters()]
    buffers = []
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            buffers.append((module, name, buffer))
    forward = model
    if cfg.parallelism.kind == "zero":  # DeepSpeed's engine applies autocast
        forward = loop.model
    with torch.no_grad(), unwrap.evaluation_weights(loop.optimizer), unwrap.without_routers_loss(model):
        # The optimizer's swap comes before the cast: it needs the weights in the types that they were trained in.
        if cfg.eval.precision:
            model.to(DTYPES[cfg.eval.precision])
            for module, name, buffer in buffers:
                if name.endswith(FP32_BUFFERS):
                    setattr(module, name, buffer)
            forward = accelerate_private.forward_without_autocast(model)
        model.eval()
        try:
            yield forward
            fsdp.reshard(model)
        finally:
            model.train()
            if cfg.eval.precision:
                for weight, dtype in dtypes:
                    weight.data = weight.data.to(dtype)
                for module, name, buffer in buffers:
                    setattr(module, name, buffer)


def totals(
    forward: Any,
    loader: BatchLoader,
    task: str,
    device: torch.device,
    advance: Callable[[int], None] = lambda _: None,
    on_output: Callable[[data_loader.Batch, Any], None] = lambda *_: None,
) -> list:
    """[summed loss, labels, samples, and the sums of `scores.SUMS`] of this rank. advance: called with the number of
    batches that are done. on_output: called with each batch that has rows, and the model's output for it."""
    loss_sum: Any = torch.zeros((), dtype=torch.float64, device=device)
    count: Any = 0
    samples = 0
    score_sums: list[Any] = [0.0] * scores.SUMS.get(task, 0)
    for index, batch in enumerate(loader):
        advance(index)
        output = forward(**batch)
        if batch.rows == 0:  # FSDP needs every rank in every forward pass, also if the rank has no rows left
            continue
        labels = labels_in(labels_of(batch))
        loss_sum = loss_sum + output.loss.double() * labels
        count = count + labels
        samples += batch.rows
        if score_sums:
            for place, number in enumerate(scores.sums(task, output.logits, batch["labels"])):
                score_sums[place] = score_sums[place] + number
        on_output(batch, output)
        del output  # its logits would stay while the next batch makes its own
    return [loss_sum, count, samples, *score_sums]
