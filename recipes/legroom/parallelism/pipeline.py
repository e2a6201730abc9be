"""Pipeline parallelism: each rank of a group has some layers of the model, and the micro-batches of a step travel
through the ranks by a schedule of torch.distributed.pipelining.

Every rank builds the whole model, keeps the modules of its parts, and runs the model's own forward pass, in which cheap
modules stand for those of the other ranks: so masks, positions and names of weights are those of the whole model.
Shapes: B rows of a micro-batch, T tokens, D width.
"""

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from accelerate import Accelerator
from torch import Tensor, nn
from torch.nn.functional import pad
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

from legroom.compat import torch_distributed_private
from legroom.config.menus import Parallelism
from legroom.data.collate import IGNORE_INDEX
from legroom.data.data_loader import Batch
from legroom.errors import Refusal
from legroom.options import model_families
from legroom.parallelism.pipeline_parts import NoEmbedding, Part, Passing, Received, around, layers_of
from legroom.ranks import collectives

PADDING = {"labels": IGNORE_INDEX, "attention_mask": 0, "input_ids": 0}  # of the inputs that a batch may have


class Pipeline:
    """This rank's part of a model, or parts: of `count`, those whose number modulo the number of ranks is its own.

    group: the `ranks` that have the model together. copies: those with the same parts, one of each pipeline; copy:
    which of them this is. ends: the first and the last of the group. tied: the weight of the embeddings on these two,
    if the output layer has the same. parameters, trained: numbers of the whole model. layers: that this rank has.
    """

    def __init__(self, model: PreTrainedModel, own: Parallelism):
        self.model, self.settings = model, own
        self.ranks = own.together
        world, rank = dist.get_world_size(), dist.get_rank()
        pipelines = [list(range(first, first + self.ranks)) for first in range(0, world, self.ranks)]
        copies = [list(range(place, world, self.ranks)) for place in range(self.ranks)]
        groups = (pipelines, copies, [[each[0], each[-1]] for each in pipelines])  # which all ranks make
        of_this_rank: list[Any] = [dist.new_subgroups_by_enumeration(each)[0] for each in groups]
        self.group, self.copies, self.ends = of_this_rank
        self.copy, place = divmod(rank, self.ranks)
        self.first_rank = rank - place
        self.count = self.ranks * (own.chunks or 1)
        self.parts = range(place, self.count, self.ranks)
        self.running: int | None = None
        self.parameters = sum(weight.numel() for weight in model.parameters())
        self.trained = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
        self.width, self.dtype = model.config.get_text_config().hidden_size, model.dtype
        self._split(model)
        self.whole_forward = model.forward
        model.forward = lambda **batch: self._forward(batch)  # no method, which Accelerate would bind to the model

    def _split(self, model: PreTrainedModel) -> None:
        """Takes the modules of other ranks out of the model, and keeps what stands for them while a part runs."""
        path, layers = layers_of(model)
        if len(layers) < self.count:
            raise Refusal(
                f"{len(layers)} layers cannot be split into {self.count} parts. Type parallelism.stages={len(layers)} "
                "or fewer, or a model with more layers."
            )
        before, after = around(model, path)
        first, last = model.get_input_embeddings(), model.get_output_embeddings()
        tied = last is not None and first.weight is last.weight
        self.has_first, self.has_last = 0 in self.parts, self.count - 1 in self.parts
        self.tied = first.weight if tied and (self.has_first or self.has_last) else None
        no_embeddings = {name: NoEmbedding(model.get_submodule(name), self.width, self.dtype) for name in before}
        passing = {name: Passing(model.get_submodule(name)) for name in after}
        size, more = divmod(len(layers), self.count)
        bounds = [part * size + min(part, more) for part in range(self.count + 1)]
        empty: list[nn.Module] = [Passing(layer) for layer in layers]
        self.received: dict[int, Received] = {}
        self.modules: dict[int, dict[str, nn.Module]] = {}  # part -> what it runs with, by name
        kept, self.layers = list(empty), 0
        for part in self.parts:
            begin, end = bounds[part : part + 2]
            running = list(empty)
            running[begin:end] = kept[begin:end] = layers[begin:end]
            self.layers += end - begin
            if begin:
                running[begin - 1] = self.received[part] = Received(layers[begin - 1])
            self.modules[part] = {path: nn.ModuleList(running)}
            self.modules[part] |= no_embeddings if part else {}
            self.modules[part] |= passing if part < self.count - 1 else {}
        absent = {path: nn.ModuleList(kept)} | ({} if self.has_last else passing)
        if not self.has_first:  # the output layer has the weight of tied embeddings under their name
            tie = [name for name in before if tied and self.has_last and model.get_submodule(name) is first]
            absent |= {name: each for name, each in no_embeddings.items() if name not in tie}
        for name, module in absent.items():
            model.set_submodule(name, module)

    # --- passes --------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _only(self, part: int) -> Iterator[None]:
        """Inside, the model has the modules of a part alone."""
        before = {name: self.model.get_submodule(name) for name in self.modules[part]}
        for name, module in self.modules[part].items():
            self.model.set_submodule(name, module)
        try:
            yield
        finally:
            for name, module in before.items():
                self.model.set_submodule(name, module)

    def _run(self, part: int, given: Tensor, batch: dict[str, Tensor], call: Callable[..., Tensor]) -> Tensor:
        """A part's hidden states (B, T, D), or its loss (). call: the model's, which runs its hooks; or inside it."""
        self.running = part
        if part:
            self.received[part].hidden = given
        try:
            with self._only(part):
                return call(**batch)
        finally:
            self.running = None
            if part:
                self.received[part].hidden = None

    def _forward(self, batch: dict[str, Tensor]) -> Any:
        """The model's forward pass: of the part that runs, or through all of them."""
        if self.running is None:
            return self._evaluated(batch)
        if self.running < self.count - 1:
            batch = {name: each for name, each in batch.items() if name != "labels"}
            return self.model.base_model(**batch).last_hidden_state
        return self.whole_forward(**batch).loss

    def _evaluated(self, batch: dict[str, Tensor]) -> CausalLMOutput:
        """The loss of the whole model on every rank: each part waits for the one before it."""
        given: Tensor = batch["input_ids"]
        shape, device = (*given.shape, self.width), given.device
        for part in self.parts:
            if part:
                given = torch.empty(shape, dtype=self.dtype, device=device)
                dist.recv(given, self._owner(part - 1), group=self.group)
            # Not the model's call, in which this is: the autocast around both is one object, and would not end.
            given = self._run(part, given, batch, lambda **rows: self._forward(rows))
            if part < self.count - 1:
                dist.send(given.to(self.dtype).contiguous(), self._owner(part + 1), group=self.group)
        loss = given.float() if self.has_last else torch.zeros((), device=device)
        dist.broadcast(loss, self._owner(self.count - 1), group=self.group)
        return CausalLMOutput(loss=loss)  # pyright: ignore[reportArgumentType]  # any float tensor

    def _owner(self, part: int) -> int:
        return self.first_rank + part % self.ranks

    # --- the step ------------------------------------------------------------------------------------

    def step(self, batches: Sequence[Batch], shares: Sequence[Any]) -> Tensor:
        """The passes of an optimizer step, with gradients that are those of the effective batch afterwards. Returns
        this rank's part of the loss, (): on the rank with the last part all of it, times the number of ranks.

        Torch's schedules take micro-batches of one shape, and as many as they have ranks: smaller ones are padded, and
        the first is run again, without weight, where a last step has fewer.
        """
        batches, weights = list(batches), [1.0 if share is None else share for share in shares]
        if self.settings.schedule != "gpipe":
            missing = -len(batches) % self.ranks if self.settings.chunks else max(0, self.ranks - len(batches))
            batches, weights = batches + batches[:1] * missing, weights + [0.0] * missing
        whole = _joined(batches)
        ids, order, losses = whole["input_ids"], iter(weights), []
        stages = [self._stage(part, ids, len(batches)) for part in self.parts]
        schedule = torch_distributed_private.pipeline_schedule(
            self.settings.schedule, stages, len(batches), lambda loss, _: loss * next(order)
        )
        given = [ids] if self.has_first else []
        last = {"target": ids, "losses": losses} if self.has_last else {}
        try:
            schedule.step(*given, **whole, **last, return_outputs=False)
        except RuntimeError as error:
            raise error.__cause__ or error from None  # torch puts what a pass raises into one of its own
        self._sum_gradients(batches[0].ranks)
        return self.ranks * sum(losses, torch.zeros((), device=ids.device)).detach()

    def _stage(self, part: int, ids: Tensor, count: int) -> Any:
        """A part as a stage of torch's schedules, which knows the shapes of what is sent. ids: (count x B, T)"""
        rows = (len(ids) // count, ids.shape[1])
        hidden = torch.empty(*rows, self.width, dtype=self.dtype, device="meta", requires_grad=True)
        given = hidden if part else torch.empty(rows, dtype=ids.dtype, device="meta")
        made = hidden if part < self.count - 1 else torch.empty((), device="meta", requires_grad=True)
        run = Part(functools.partial(self._run, part, call=self.model))
        return torch_distributed_private.pipeline_stage(run, part, self.count, ids.device, given, made, self.group)

    def _sum_gradients(self, replicas: int) -> None:
        """Adds what both ends have of the gradient of tied embeddings, and takes the mean over the replicas."""
        if self.tied is not None:
            dist.all_reduce(self.tied.grad, group=self.ends)
        if replicas > 1:
            for weight in self.model.parameters():
                if weight.grad is not None:
                    dist.all_reduce(weight.grad.div_(replicas), group=self.copies)

    def clip(self, parameters: Iterable[Tensor], max_norm: float, norm_type: float = 2) -> Tensor:
        """Clips by the norm over the gradients of all parts, and returns it. As `Accelerator.clip_grad_norm_`."""
        weights = list(parameters)
        counted = [each.grad for each in weights if each.grad is not None and (each is not self.tied or self.has_first)]
        square = get_total_norm(counted, norm_type).square()
        dist.all_reduce(square, group=self.group)
        clip_grads_with_norm_(weights, max_norm, square.sqrt())
        return square.sqrt()

    # --- saving --------------------------------------------------------------------------------------

    def gathered(self) -> dict[str, Tensor]:
        """The whole model's state dictionary on the CPU of rank 0; on others what they send of it. Every rank
        calls this."""
        own = {name: each.detach().cpu().contiguous() for name, each in self.model.state_dict().items()}
        listed = collectives.all_gather({name: (each.shape, each.dtype) for name, each in own.items()})
        rank, names = dist.get_rank(), set(listed[0])
        for sender in range(1, self.ranks):
            for name, (shape, dtype) in listed[sender].items():
                if name in names:
                    continue
                names.add(name)
                if rank == sender:
                    dist.send(own[name], 0)
                elif rank == 0:
                    own[name] = torch.empty(shape, dtype=dtype)
                    dist.recv(own[name], sender)
        return own


def _joined(batches: Sequence[Batch]) -> dict[str, Tensor]:
    """The rows of all micro-batches, each padded to the size of the largest by rows and tokens without labels."""
    if unknown := set(batches[0]) - PADDING.keys():
        raise Refusal(f"parallelism=pipeline: it is not known how to send {', '.join(sorted(unknown))}.")
    rows, tokens = (max(each["input_ids"].shape[axis] for each in batches) for axis in (0, 1))
    found: dict[str, list[Tensor]] = {name: [] for name in batches[0]}
    for batch in batches:
        for name, each in batch.items():
            each = pad(each, (0, tokens - each.shape[1]), value=PADDING[name])
            more = each[:1].expand(rows - len(each), -1)
            found[name] += [each, torch.full_like(more, IGNORE_INDEX) if name == "labels" else more]
    return {name: torch.cat([each for each in parts if len(each)]) for name, parts in found.items()}


# --- of a model --------------------------------------------------------------------------------------

_ATTRIBUTE = "legroom_pipeline"  # of the model: a table beside it would keep the model alive


def split(model: PreTrainedModel, own: Parallelism) -> None:
    """Keeps this rank's parts of a model. Needs the initialised process group."""
    vars(model)[_ATTRIBUTE] = Pipeline(model, own)


def of(model: Any) -> Pipeline | None:
    """The pipeline of which a model is this rank's part; None for a whole model."""
    return vars(model).get(_ATTRIBUTE)


def attach(accelerator: Accelerator, model: Any) -> Pipeline | None:
    """The pipeline of a model, which an Accelerator then leaves as it is, and clips over all parts."""
    pipeline = of(model)
    if pipeline is not None:
        accelerator.prepare_model = functools.partial(accelerator.prepare_model, evaluation_mode=True)  # without DDP
        accelerator.clip_grad_norm_ = pipeline.clip  # type: ignore[method-assign]
    return pipeline


def check(name: str, config: PretrainedConfig, task: str) -> None:
    """Raises Refusal for a model that cannot be split. name: as typed."""
    kind = config.get_text_config().model_type
    if task != "language_modelling":
        raise Refusal(
            f"parallelism=pipeline is for the next token's loss, and the task here is {task}. Type parallelism=fsdp."
        )
    if kind not in model_families.PIPELINE:
        raise Refusal(
            f"parallelism=pipeline: models of type {kind} were not seen to compute the same in parts, as {name} would. "
            f"Type parallelism=fsdp; these were: {', '.join(sorted(model_families.PIPELINE))}."
        )
    if getattr(config.get_text_config(), "output_router_logits", False):
        raise Refusal(
            f"parallelism=pipeline: the routers' loss of {name} (output_router_logits) is of all layers. Type "
            "parallelism=fsdp."
        )
