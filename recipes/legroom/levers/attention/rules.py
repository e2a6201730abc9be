"""model.attention: the implementations beside PyTorch's own, what each needs, and when it is refused."""

from collections.abc import Collection
from dataclasses import dataclass

from legroom.config import Config
from legroom.levers.compile.rules import gpu_problems
from legroom.machine import host
from legroom.options import hooks
from legroom.options.hooks import PASSES, Conflict, Dimension, Lever

FLEX = "flex_attention"
SDPA = "Choose model.attention=sdpa."


@dataclass(frozen=True)
class Package:
    """What provides an implementation. module: that it is imported as. install: what installs it. capability: the
    lowest compute capability. shares_module: another package has the same module, so its own name tells."""

    module: str
    name: str
    install: str
    capability: tuple[int, int] = (8, 0)
    shares_module: bool = False

    @property
    def is_installed(self) -> bool:
        if self.shares_module:
            return host.version(self.name) is not None
        return host.has(self.module)


_HUB = Package("kernels", "kernels", "pip install kernels")
# Flash attention: in 16 bits, on Ampere or newer, without a mask of T x T. Those of a hub are downloaded when the model
# is built; transformers loads them from this organisation alone.
FLASH = {
    "flash_attention_2": Package("flash_attn", "flash-attn", "pip install flash-attn --no-build-isolation"),
    "flash_attention_3": Package(
        "flash_attn_interface",
        "flash-attn-3",
        "build hopper/ of github.com/Dao-AILab/flash-attention",
    ),
    "flash_attention_4": Package("flash_attn", "flash-attn-4", "pip install flash-attn-4", (9, 0), shares_module=True),
    "kernels-community/flash-attn2": _HUB,
    "kernels-community/flash-attn3": _HUB,
    "kernels-community/vllm-flash-attn3": _HUB,
}
GENERATIONS = {(8, 0): "Ampere", (9, 0): "Hopper"}


def is_of_hub(name: str) -> bool:
    """Whether an implementation is downloaded."""
    return FLASH.get(name) is _HUB


def lacks_dropout(name: str) -> bool:
    """Whether an implementation has no dropout of the scores: transformers leaves it out, or fails in the step."""
    return name == FLEX or name.endswith(("_3", "_4", "flash-attn3"))


def problems(cfg: Config, given: Collection[str] = ()) -> list[str]:
    """Why this machine, or another option, cannot have the chosen implementation."""
    name = cfg.model.attention
    if name != FLEX and name not in FLASH:
        return []
    if not cfg.target.on_gpu:
        if name == FLEX:
            return [f"model.attention={name} needs a GPU to train: torch has no backward pass of it on a CPU. {SDPA}"]
        return [f"model.attention={name} needs a GPU. {SDPA}"]
    if cfg.model.dropout and lacks_dropout(name):
        return [f"model.attention={name} has no dropout. Type model.dropout=0, or model.attention=sdpa."]
    if name == FLEX:
        return _flex_problems(cfg)
    return _flash_problems(cfg, FLASH[name])


def _flash_problems(cfg: Config, package: Package) -> list[str]:
    name, gpu = cfg.model.attention, cfg.target.gpu
    if gpu and gpu.capability < package.capability:
        major, minor = package.capability
        return [
            f"model.attention={name} needs compute capability {major}.{minor} ({GENERATIONS[package.capability]}) or "
            f"newer, which {gpu.name} does not have. {SDPA}"
        ]
    if not package.is_installed and not cfg.predicts:
        return [
            f"model.attention={name} needs the package {package.name}: {package.install}, or choose "
            "model.attention=sdpa."
        ]
    if cfg.precision.kind not in ("fp16", "bf16", "bf16_pure", "fp8"):
        return [f"model.attention={name} works in 16 bits only. Choose precision=bf16, or model.attention=sdpa."]
    return []


def _flex_problems(cfg: Config) -> list[str]:
    if cfg.predicts:
        return [
            "recipe=estimate does not support model.attention=flex_attention, a compiled kernel whose memory is not "
            "known here. Type model.attention=sdpa, which keeps no scores either."
        ]
    return gpu_problems(f"model.attention={FLEX}", "choose model.attention=sdpa")


def warnings(cfg: Config) -> list[str]:
    """What is not measured."""
    if cfg.model.attention != FLEX or not cfg.measure.ledger:
        return []
    return [
        f"model.attention={FLEX}: the memory ledger cannot run it, so the parts of the memory and the FLOPs are not "
        "counted. Type measure.ledger=false, or model.attention=sdpa."
    ]


def memory_levers(cfg: Config) -> list[Lever]:
    """Attention that does not keep the scores of all pairs of tokens."""
    if cfg.model.attention != "eager":
        return []
    return [Lever("model.attention=sdpa", helps_in=(PASSES,))]


CONFLICTS = (
    Conflict(
        "measure.operations=true",
        "model.attention=flex_attention",
        ", which is no single operation",
        "Leave measure.operations out, or choose model.attention=sdpa.",
    ),
    Conflict(
        "checkpointing=selective,selective_half",
        "model.attention=flex_attention",
        ", which is no single operation",
        "Choose checkpointing=full, or model.attention=sdpa.",
    ),
)

SEARCH = (Dimension("model.attention", 30, ("auto", "eager")),)


def chosen(cfg: Config) -> bool:
    return cfg.model.attention != "auto"


hooks.register_module("model.attention", globals())
