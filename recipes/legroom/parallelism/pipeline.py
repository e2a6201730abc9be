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
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
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
    """The parts of a model on this rank.

    The model is cut into `count` parts. A rank has those whose number modulo the number of ranks is its own: one, or
    several with an interleaved schedule.

    group: the ranks that have the model together, `members` in the order of their parts. copies: the ranks of all
    pipelines with the same parts. copy: the number of this rank's pipeline. ends: the first and the last rank of the
    group. is_tied: these two have the weight of the embeddings, since the output layer has the same. parameters,
    trained: counts of the whole model. layers: how many this rank has. token_parts: into how many parts the tokens of
    what travels are shared out. dtype: of what travels.
    """

    def __init__(self, model: PreTrainedModel, settings: Parallelism, dtype: torch.dtype | None = None):
        self.model = model
        self.settings = settings
        self.ranks = settings.stage_ranks
        self.token_parts = settings.token_parts
        self._make_groups()
        place = self.members.index(dist.get_rank())
        self.count = self.ranks * settings.parts_of_rank
        self.parts = range(place, self.count, self.ranks)
        self.has_first = 0 in self.parts
        self.has_last = self.count - 1 in self.parts
        self.running: int | None = None  # the part whose forward pass runs
        self.parameters = sum(weight.numel() for weight in model.parameters())
        self.trained = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
        self.width = model.config.get_text_config().hidden_size
        self.dtype = dtype or model.dtype
        self._split(model)
        self.whole_forward = model.forward

        def forward(**batch: Tensor) -> Any:  # a method would be bound by Accelerate to the model
            return self._forward(batch)

        model.forward = forward

    def _make_groups(self) -> None:
        """Makes the process groups, of which every rank makes all."""
        world = dist.get_world_size()
        copies = world // self.ranks
        if self.settings.kind == "mesh":  # whose stages are farthest apart
            pipelines = [list(range(copy, world, copies)) for copy in range(copies)]
            self.copy = dist.get_rank() % copies
        else:
            pipelines = [list(range(first, first + self.ranks)) for first in range(0, world, self.ranks)]
            self.copy = dist.get_rank() // self.ranks
        self.members = pipelines[self.copy]
        same_parts = [list(ranks) for ranks in zip(*pipelines)]
        ends = [[ranks[0], ranks[-1]] for ranks in pipelines]
        self.group: Any = dist.new_subgroups_by_enumeration(pipelines)[0]
        self.copies: Any = dist.new_subgroups_by_enumeration(same_parts)[0]
        self.ends: Any = dist.new_subgroups_by_enumeration(ends)[0]

    def _split(self, model: PreTrainedModel) -> None:
        """Takes the modules of other ranks out of the model, and keeps what stands for them while a part runs."""
        path, layers = layers_of(model)
        if len(layers) < self.count:
            raise Refusal(
                f"{len(layers)} layers cannot be split into {self.count} parts. Type parallelism.stages={len(layers)} "
                "or fewer, or a model with more layers."
            )
        before, after = around(model, path)
        no_embeddings = {name: NoEmbedding(model.get_submodule(name), self.width, self.dtype) for name in before}
        passing_after = {name: Passing(model.get_submodule(name)) for name in after}
        passing_layers: list[nn.Module] = [Passing(layer) for layer in layers]
        kept = list(passing_layers)
        self.layers = 0
        self.received: dict[int, Received] = {}
        self.modules: dict[int, dict[str, nn.Module]] = {}  # part -> what it runs with, by name
        for part in self.parts:
            begin, end = self._bounds(part, len(layers))
            self.layers += end - begin
            kept[begin:end] = layers[begin:end]
            running = list(passing_layers)
            running[begin:end] = layers[begin:end]
            modules: dict[str, nn.Module] = {}
            if part > 0:
                self.received[part] = Received(layers[begin - 1])
                running[begin - 1] = self.received[part]
                modules |= no_embeddings
            if part < self.count - 1:
                modules |= passing_after
            modules[path] = nn.ModuleList(running)
            self.modules[part] = modules

        embeddings = model.get_input_embeddings()
        output = model.get_output_embeddings()
        is_tied = output is not None and embeddings.weight is output.weight
        self.is_tied = is_tied and (self.has_first or self.has_last)
        model.set_submodule(path, nn.ModuleList(kept))
        if not self.has_last:
            for name, module in passing_after.items():
                model.set_submodule(name, module)
        if not self.has_first:
            for name, module in no_embeddings.items():
                # Under their name the output layer's state dictionary has the weight of tied embeddings.
                if not self.is_tied or model.get_submodule(name) is not embeddings:
                    model.set_submodule(name, module)

    @property
    def tied(self) -> Tensor | None:
        """The weight of the embeddings on a rank that shares it with another one; it changes where it is sharded."""
        if not self.is_tied:
            return None
        layer: Any = self.model.get_input_embeddings() if self.has_first else self.model.get_output_embeddings()
        return layer.weight

    def _bounds(self, part: int, layers: int) -> tuple[int, int]:
        """The first layer of a part and the one behind its last. The first parts have a layer more where the layers do
        not divide."""
        size, remainder = divmod(layers, self.count)
        begin = part * size + min(part, remainder)
        end = (part + 1) * size + min(part + 1, remainder)
        return begin, end

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

    def run_part(self, part: int, hidden: Tensor, batch: dict[str, Tensor], forward: Callable[..., Tensor]) -> Tensor:
        """A part's hidden states (B, T, D), or the loss () of the last one.

        hidden: of the part before, (B, T, D); the first part takes the batch alone. forward: the model, whose call runs
        its hooks, or its forward pass inside of such a call.
        """
        if isinstance(self.model, FSDPModule):
            torch_distributed_private.find_fsdp_modules(self.model)
        self.running = part
        if part > 0:
            self.received[part].hidden = hidden
        try:
            with self._only(part):
                return forward(**batch)
        finally:
            self.running = None
            if part > 0:
                self.received[part].hidden = None

    def _forward(self, batch: dict[str, Tensor]) -> Any:
        """The model's forward pass: of the part that runs, or through all of them."""
        if self.running is None:
            return self._evaluated(batch)
        if self.running < self.count - 1:
            batch = {name: values for name, values in batch.items() if name != "labels"}
            return self.model.base_model(**batch).last_hidden_state
        return self.whole_forward(**batch).loss

    def _evaluated(self, batch: dict[str, Tensor]) -> CausalLMOutput:
        """The loss of the whole model on every rank: each part waits for the one before it."""
        hidden: Tensor = batch["input_ids"]  # of this rank's tokens of each row
        B, T = hidden.shape
        shape = self._travelling(B, T * self.settings.context_ranks)
        device = hidden.device
        for part in self.parts:
            if part > 0:
                hidden = torch.empty(shape, dtype=self.dtype, device=device)
                dist.recv(hidden, self._owner(part - 1), group=self.group)
            # Not the model's call, in which this is: the autocast around both is one object, and would not end.
            hidden = self.run_part(part, hidden, batch, lambda **rows: self._forward(rows))
            if part < self.count - 1:
                dist.send(hidden.to(self.dtype).contiguous(), self._owner(part + 1), group=self.group)
        loss = hidden.float() if self.has_last else torch.zeros((), device=device)
        dist.broadcast(loss, self._owner(self.count - 1), group=self.group)
        return CausalLMOutput(loss=loss)  # pyright: ignore[reportArgumentType]  # any float tensor

    def _travelling(self, B: int, T: int) -> tuple[int, int, int]:
        """The shape of the hidden states between two parts."""
        return B, T // self.token_parts, self.width

    def _owner(self, part: int) -> int:
        return self.members[part % self.ranks]

    # --- the step ------------------------------------------------------------------------------------

    def step(self, batches: Sequence[Batch], shares: Sequence[Any]) -> Tensor:
        """The passes of an optimizer step, with gradients that are those of the effective batch afterwards. Returns
        this rank's part of the loss, (): on the rank with the last part all of it, times the number of ranks.

        Torch's schedules take micro-batches of one shape, and as many as they have ranks: smaller ones are padded, and
        the first is run again, without weight, where a last step has fewer.
        """
        batches = list(batches)
        weights = [1.0 if share is None else share for share in shares]
        for _ in range(self._missing(len(batches))):
            batches.append(batches[0])
            weights.append(0.0)
        inputs = _joined(batches)
        ids = inputs["input_ids"]
        next_weight = iter(weights)
        stages = [self._stage(part, ids, len(batches)) for part in self.parts]
        schedule = torch_distributed_private.pipeline_schedule(
            self.settings.schedule, stages, len(batches), lambda loss, _: loss * next(next_weight)
        )
        losses: list[Tensor] = []
        first_inputs = [ids] if self.has_first else []
        if self.has_last:
            inputs |= {"target": ids, "losses": losses}
        postponed = self._postponed_reduction()
        try:
            with postponed:
                schedule.step(*first_inputs, **inputs, return_outputs=False)
        except RuntimeError as error:
            raise error.__cause__ or error from None  # torch puts what a pass raises into one of its own
        self._sum_gradients(batches[0].ranks)
        return self.ranks * sum(losses, torch.zeros((), device=ids.device)).detach()

    def _postponed_reduction(self) -> contextlib.AbstractContextManager[None]:
        """Inside, FSDP adds up the gradients of the micro-batches, and reduces them at the end; unless it shall do so
        after each."""
        if not isinstance(self.model, FSDPModule) or self.settings.sync_each_batch:
            return contextlib.nullcontext()
        return torch_distributed_private.reduced_once(self.model, stays_gathered=not self.settings.reshards)

    def _missing(self, batches: int) -> int:
        """How many micro-batches a step lacks for its schedule."""
        if self.settings.schedule == "gpipe":  # takes any number
            return 0
        if self.settings.chunks:  # an interleaved schedule takes multiples of the ranks
            return -batches % self.ranks
        return max(0, self.ranks - batches)

    def _stage(self, part: int, ids: Tensor, count: int) -> Any:
        """A part as a stage of torch's schedules, which knows the shapes of what is sent. ids: (count x B, T)"""
        B, T = len(ids) // count, ids.shape[1]
        hidden = torch.empty(*self._travelling(B, T), dtype=self.dtype, device="meta", requires_grad=True)
        received = hidden
        if part == 0:
            received = torch.empty(B, T, dtype=ids.dtype, device="meta")
        sent = hidden
        if part == self.count - 1:
            sent = torch.empty((), device="meta", requires_grad=True)
        module = Part(functools.partial(self.run_part, part, forward=self.model))
        return torch_distributed_private.pipeline_stage(
            module, part, self.count, ids.device, received, sent, self.group
        )

    def buffers(self, B: int, T: int, micro_batches: int) -> list[Tensor]:
        """What torch's stages keep until the end of a step for the messages of so many micro-batches: the hidden states
        that come, and their gradients; with an interleaved schedule also those that were sent."""
        kept = []
        for part in self.parts:
            messages = (part > 0) + (part < self.count - 1)
            if self.settings.chunks:
                messages *= 2
            for _ in range(messages * micro_batches):
                kept.append(torch.empty(self._travelling(B, T), dtype=self.dtype, device=self.model.device))
        return kept

    def _sum_gradients(self, replicas: int) -> None:
        """Adds what both ends have of the gradient of tied embeddings, and takes the mean over the replicas."""
        tied = self.tied
        if tied is not None:
            gradient = tied.grad
            assert gradient is not None, "both ends have used it"
            if isinstance(gradient, DTensor):
                gradient = gradient.to_local()
            dist.all_reduce(gradient, group=self.ends)
        if replicas > 1 and self.settings.kind != "mesh":
            for weight in self.model.parameters():
                if weight.grad is not None:
                    dist.all_reduce(weight.grad.div_(replicas), group=self.copies)

    def clip(self, parameters: Iterable[Tensor], max_norm: float, norm_type: float = 2) -> Tensor:
        """Clips by the norm over the gradients of all parts, and returns it. As `Accelerator.clip_grad_norm_`."""
        weights = list(parameters)
        gradients = []
        for weight in weights:
            if weight is self.tied and not self.has_first:  # the first rank counts it
                continue
            if weight.grad is not None:
                gradients.append(weight.grad)
        square = get_total_norm(gradients, norm_type).square()
        dist.all_reduce(square, group=self.group)
        clip_grads_with_norm_(weights, max_norm, square.sqrt())
        return square.sqrt()

    # --- saving --------------------------------------------------------------------------------------

    def gathered(self) -> dict[str, Tensor]:
        """The whole model's state dictionary on the CPU of rank 0; on others what they send of it. Every rank
        calls this."""
        state = {name: _whole(tensor.detach()).cpu().contiguous() for name, tensor in self.model.state_dict().items()}
        forms = {name: (tensor.shape, tensor.dtype) for name, tensor in state.items()}
        forms_of_ranks = collectives.all_gather(forms)
        rank = dist.get_rank()
        gathered = set(forms_of_ranks[0])
        first_pipeline = [member - self.members[0] for member in self.members]
        for sender in first_pipeline[1:]:
            for name, (shape, dtype) in forms_of_ranks[sender].items():
                if name in gathered:
                    continue
                gathered.add(name)
                if rank == sender:
                    dist.send(state[name], 0)
                elif rank == 0:
                    state[name] = torch.empty(shape, dtype=dtype)
                    dist.recv(state[name], sender)
        return state


def _whole(tensor: Tensor) -> Tensor:
    """A tensor of which a mesh's ranks may have parts. All ranks of a stage call this."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _joined(batches: Sequence[Batch]) -> dict[str, Any]:
    """The rows of all micro-batches, each padded to the size of the largest by rows and tokens without labels."""
    unknown = set(batches[0]) - PADDING.keys()
    if unknown:
        raise Refusal(f"parallelism=pipeline: it is not known how to send {', '.join(sorted(unknown))}.")
    rows = max(batch["input_ids"].shape[0] for batch in batches)
    tokens = max(batch["input_ids"].shape[1] for batch in batches)
    parts: dict[str, list[Tensor]] = {name: [] for name in batches[0]}
    for batch in batches:
        for name, values in batch.items():
            values = pad(values, (0, tokens - values.shape[1]), value=PADDING[name])
            parts[name].append(values)
            if len(values) < rows:
                filling = values[:1].expand(rows - len(values), -1)
                if name == "labels":
                    filling = torch.full_like(filling, IGNORE_INDEX)
                parts[name].append(filling)
    return {name: torch.cat(tensors) for name, tensors in parts.items()}


# --- of a model --------------------------------------------------------------------------------------

_ATTRIBUTE = "legroom_pipeline"  # of the model: a table beside it would keep the model alive


def split(model: PreTrainedModel, settings: Parallelism, dtype: torch.dtype | None = None) -> None:
    """Keeps this rank's parts of a model. Needs the initialised process group. dtype: of what travels between them;
    None: the model's."""
    vars(model)[_ATTRIBUTE] = Pipeline(model, settings, dtype)


def of(model: Any) -> Pipeline | None:
    """The pipeline of which a model is this rank's part; None for a whole model."""
    return vars(model).get(_ATTRIBUTE)


def attach(accelerator: Accelerator, model: Any) -> Pipeline | None:
    """The pipeline of a model, which an Accelerator then leaves as it is, and clips over all parts."""
    pipeline = of(model)
    if pipeline is not None and pipeline.settings.kind != "mesh":
        accelerator.prepare_model = functools.partial(accelerator.prepare_model, evaluation_mode=True)  # without DDP
        accelerator.clip_grad_norm_ = pipeline.clip  # type: ignore[method-assign]
    return pipeline


def check(name: str, config: PretrainedConfig, task: str) -> None:
    """Raises Refusal for a model that cannot be split. name: as typed."""
    text_config = config.get_text_config()
    if task != "language_modelling":
        raise Refusal(
            f"parallelism=pipeline is for the next token's loss, and the task here is {task}. Type parallelism=fsdp."
        )
    if text_config.model_type not in model_families.PIPELINE:
        raise Refusal(
            f"parallelism=pipeline: models of type {text_config.model_type} were not seen to compute the same in "
            f"parts, as {name} would. Type parallelism=fsdp; these were: {', '.join(sorted(model_families.PIPELINE))}."
        )
    if getattr(text_config, "output_router_logits", False):
        raise Refusal(
            f"parallelism=pipeline: the routers' loss of {name} (output_router_logits) is of all layers. Type "
            "parallelism=fsdp."
        )
