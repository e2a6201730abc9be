"""kernels: other implementations of a model's layers.

liger: Hsu et al. 2024, arXiv 2410.10989.
"""

from collections.abc import Collection

from legroom.config import Config
from legroom.levers.compile.rules import gpu_problems
from legroom.machine import host
from legroom.options import hooks
from legroom.options.hooks import Conflict

FAMILIES = {"llama", "mixtral", "mistral", "qwen2", "qwen3", "qwen3_moe", "gemma2", "gemma3_text", "phi3"}


def chosen(cfg: Config) -> bool:
    """Whether Liger's kernels are used. A configuration of an older record has no such menu."""
    return cfg.kernels.kind == "liger"


def problems(cfg: Config, given: Collection[str] = ()) -> list[str]:
    """What does not go with Liger's kernels."""
    if not chosen(cfg):
        return []
    found = []
    if not cfg.model.pretrained and cfg.model.family not in FAMILIES:
        found.append(
            f"kernels=liger has no kernels for model={cfg.model.name} ({cfg.model.family}). Choose model=llama_tiny or "
            "another llama, or kernels=none."
        )
    if not cfg.predicts and cfg.target.on_gpu and host.has("liger_kernel"):
        found += gpu_problems("kernels=liger", "choose kernels=none")
    return found


CONFLICTS = (
    Conflict("loss=chunked", "kernels=liger", ", which computes the loss in chunks itself"),
    Conflict("kernels=liger", "compile=true"),
    Conflict("kernels=liger", "parallelism=pipeline", " yet", "Choose kernels=none."),
    Conflict("kernels=liger", "parallelism.context", "", "Choose kernels=none."),
    Conflict(
        "kernels=liger",
        "parallelism=dp,fsdp,fsdp_tp,mesh,zero",
        ": its loss reads the output layer's weights, which must be whole",
        "Choose parallelism=ddp, or kernels=none with loss=chunked.",
    ),
    Conflict(
        "kernels=liger",
        "precision=fp16",
        ": its loss makes the gradients of the logits in fp16 before they are scaled, and most of them round to 0",
        "Choose precision=bf16, or loss=chunked.",
    ),
)

NOT_SEARCHED = "the estimate does not know Liger's kernels"
hooks.register_module("kernels", globals())
