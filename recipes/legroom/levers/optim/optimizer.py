"""The optimizer, by its name in transformers' table, the same for both recipes.

`Trainer.create_optimizer` does the work, so that every optimizer of that table is available: optimizers of parameter
groups, of the whole model (LOMO), of their own groups (GaLore, APOLLO), one per parameter (layer-wise), and factories.
An optimizer that the table lacks is one entry in FACTORIES.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch.optim import Optimizer
from transformers import Trainer, TrainingArguments
from transformers.pytorch_utils import Conv1D

from legroom.compat import torch_private
from legroom.compat.transformers_trainer_private import OptimizerBuilder
from legroom.config import Config
from legroom.errors import Refusal
from legroom.levers.optim import own_class
from legroom.options import hooks

Factory = Callable[[Config, TrainingArguments, torch.nn.Module], Optimizer]

OF_TORCHAO = ("adamw_torch_8bit", "adamw_torch_4bit", "adamw_fp8")


def build_optimizer(cfg: Config, args: TrainingArguments, model: torch.nn.Module) -> Optimizer:
    """The optimizer of a model's trainable parameters.

    Biases and norms, as transformers' Trainer tells them by name, have no weight decay; 8-bit optimizers keep the
    states of embeddings in 32 bits.
    args: the class and its settings are transformers' for `args.optim`, unless FACTORIES has it.
    """
    factory = FACTORIES.get(cfg.optim.algorithm)
    if factory is None:
        built = _of_transformers_table(args, model)
    else:
        built = factory(cfg, args, model)
    for lever in hooks.behaviours(cfg):
        lever.wrap_optimizer(built)
    return built


def _of_transformers_table(args: TrainingArguments, model: torch.nn.Module, without: Collection[int] = ()) -> Optimizer:
    """The optimizer that `args.optim` names. without: ids of weights that it leaves to another optimizer."""
    optimizer = Trainer.create_optimizer(OptimizerBuilder(args, model, _before_construction))
    for group in optimizer.param_groups:
        group["params"] = [weight for weight in group["params"] if id(weight) not in without]
    # transformers keeps a group without parameters; DeepSpeed cannot partition one.
    optimizer.param_groups[:] = [one for group in optimizer.param_groups for one in _by_mesh(group)]
    return optimizer


def _before_construction(optimizer_class: Any) -> None:
    if str(getattr(optimizer_class, "__module__", "")).startswith("bitsandbytes"):
        from legroom.compat import bitsandbytes_private  # imports bitsandbytes

        bitsandbytes_private.clear_overrides()


class CombinedOptimizer(Optimizer):
    """Several optimizers as one, for a factory that gives different parameters to different optimizers.

    Learning-rate schedules, gradient scaling and checkpoints see all parameter groups and states in one place.
    """

    def __init__(self, optimizers: Sequence[Optimizer]):
        self.optimizers = list(optimizers)
        groups = [group for optimizer in optimizers for group in optimizer.param_groups]
        super().__init__(groups, {"lr": groups[0]["lr"]})  # transformers' polynomial schedule reads defaults["lr"]
        self._share()

    def _share(self) -> None:
        """Lets the inner optimizers work on the groups and states of this one."""
        groups = iter(self.param_groups)
        for optimizer in self.optimizers:
            optimizer.param_groups = [next(groups) for _ in optimizer.param_groups]
            optimizer.state = self.state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Called by `load_state_dict`, which replaces the groups and the states."""
        super().__setstate__(state)
        self.state = defaultdict(dict, self.state)
        self._share()

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One step of each optimizer. closure: not supported, as in most optimizers of several steps."""
        assert closure is None, "CombinedOptimizer takes no closure"
        for optimizer in self.optimizers:
            optimizer.step()
        return None


def _by_mesh(group: dict[str, Any]) -> list[dict[str, Any]]:
    """A group in parts whose weights are sharded over the same ranks: one fused kernel takes no others."""
    meshes: dict[Any, list[torch.Tensor]] = {}
    for weight in group["params"]:
        meshes.setdefault(getattr(weight, "device_mesh", None), []).append(weight)
    return [group | {"params": weights} for weights in meshes.values()]


def hidden_matrices(model: torch.nn.Module) -> list[torch.nn.Parameter]:
    """The trained matrices of linear layers inside the model's stacks of layers: no embedding, output layer or head."""
    found: set[int] = set()
    for stack in (module for module in model.modules() if isinstance(module, torch.nn.ModuleList)):
        for module in stack.modules():
            if isinstance(module, (torch.nn.Linear, Conv1D)) and module.weight.dim() == 2:
                found.add(id(module.weight))
    return [weight for weight in model.parameters() if id(weight) in found and weight.requires_grad]


class _Muon(torch.optim.Muon):
    """Muon, of matrices that may be sharded: each is gathered while its update is computed, on every rank."""

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        with torch_private.muon_of_whole_matrices():
            return super().step(closure)  # type: ignore[arg-type]


def _muon(cfg: Config, args: TrainingArguments, model: torch.nn.Module) -> CombinedOptimizer:
    """Muon for `hidden_matrices`, AdamW for the other weights, at one learning rate.

    Raises Refusal for a model without such matrices.
    """
    assert cfg.optim.momentum is not None
    matrices = hidden_matrices(model)
    if not matrices:
        raise Refusal("optim=muon is for matrices of stacked layers, and this model trains none. Choose optim=adamw.")
    muon = _Muon(
        matrices,
        lr=args.learning_rate,
        weight_decay=args.weight_decay,
        momentum=cfg.optim.momentum,
        adjust_lr_fn="match_rms_adamw",
    )
    return CombinedOptimizer([muon, _of_transformers_table(args, model, without=set(map(id, matrices)))])


def warnings(cfg: Config, model: torch.nn.Module) -> list[str]:
    """What a person may not expect of the optimizer that was built for this model; a line each."""
    found = _states_in_32_bits(cfg, model)
    if cfg.optim.kind == "muon":
        found += _left_to_adamw(model)
    return found


def _states_in_32_bits(cfg: Config, model: torch.nn.Module) -> list[str]:
    """Shards that have no whole blocks, whose states torchao keeps in 32 bits."""
    if cfg.optim.algorithm not in OF_TORCHAO or not cfg.parallelism.sharded:
        return []
    block = 256  # numbers with one scale: torchao's own
    if cfg.optim.algorithm == "adamw_torch_4bit":
        block = 128
    shards = [torch_private.local_tensor(weight) for weight in model.parameters() if weight.requires_grad]
    plain = sum(shard.numel() for shard in shards if shard.numel() < 4096 or shard.numel() % block)
    total = sum(shard.numel() for shard in shards)
    if plain < 0.01 * total:
        return []
    return [
        f"optim={cfg.optim.name}: {plain:,} of this rank's {total:,} trained parameters are in shards of less than "
        f"4,096 numbers or without whole blocks of {block}, and keep states in 32 bits."
    ]


def _left_to_adamw(model: torch.nn.Module) -> list[str]:
    """What optim=muon does not train by Muon."""
    stacks = [module for module in model.modules() if isinstance(module, torch.nn.ModuleList)]
    inside = {id(weight): weight for stack in stacks for weight in stack.parameters() if weight.requires_grad}
    others = sum(weight.numel() for weight in inside.values() if weight.dim() > 2)
    if not others:
        return []
    total = sum(weight.numel() for weight in inside.values())
    return [
        f"optim=muon: AdamW trains {others:,} of the {total:,} parameters of the "
        "layers, which are in tensors of three or more dimensions (experts, convolutions)."
    ]


def _stable_adamw(cfg: Config, args: TrainingArguments, model: torch.nn.Module) -> Optimizer:
    """StableAdamW of optimi without its kernels in Triton, which neither the memory ledger nor an estimate can see.

    It would add its count of steps to a group in the first step; a checkpoint is restored before that.
    """
    optimizer = _of_transformers_table(args, model)
    for group in optimizer.param_groups:
        group.update(setup=True, step=torch.tensor(0, dtype=torch.int32), triton=False, foreach=False)
    return optimizer


def _torchao(cfg: Config, args: TrainingArguments, model: torch.nn.Module) -> Optimizer:
    """AdamW of torchao with states in few bits. On a CPU its step runs as written: compiling it for each shape of a
    weight takes longer than it saves."""
    optimizer: Any = _of_transformers_table(args, model)
    if cfg.optim.kind == "adamw_fp8":  # which transformers lacks
        from torchao.optim import AdamWFp8

        names = ("params", "betas", "eps", "weight_decay")
        groups = [{key: group[key] for key in names} for group in optimizer.param_groups]
        optimizer = AdamWFp8(groups, lr=args.learning_rate)
    if args.device.type == "cpu":
        optimizer.__class__ = type(type(optimizer).__name__, (_Uncompiled, type(optimizer)), {})
    return optimizer


def _of_factory(cfg: Config, args: TrainingArguments, model: torch.nn.Module) -> Optimizer:
    """The optimizer of a person's own class, for the parameter groups that any other would have.

    Raises Refusal where it does not take them.
    """
    groups = [
        {key: group[key] for key in ("params", "weight_decay")}
        for group in _of_transformers_table(args, model).param_groups
        if group["params"]
    ]
    return own_class.build(cfg, groups, args.learning_rate)


class _Uncompiled(Optimizer):
    """In front of an optimizer's class: what its step compiles runs as it is written."""

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        with torch.compiler.set_stance("force_eager"):
            return super().step(closure)  # type: ignore[arg-type]


FACTORIES: dict[str, Factory] = {
    "muon": _muon,
    "factory": _of_factory,
    "stable_adamw": _stable_adamw,
    **dict.fromkeys(OF_TORCHAO, _torchao),
}
"""Kind, or transformers' name -> factory, for an optimizer that transformers' table lacks or does not finish."""
