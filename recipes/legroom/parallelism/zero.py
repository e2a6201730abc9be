"""parallelism=zero: DeepSpeed's ZeRO through Accelerate. Needs the package deepspeed.

DeepSpeed keeps the trained weights in flat buffers, of which each rank holds a part. It takes the optimizer step
itself, inside the last `accelerator.backward` of an accumulation.
"""

from typing import Any

import torch
from accelerate import DeepSpeedPlugin

from legroom.config import Config
from legroom.parallelism import fsdp


def configuration(cfg: Config) -> dict[str, Any]:
    """DeepSpeed's configuration. Accelerate and the Trainer replace 'auto' by values from the model.

    Keys: https://www.deepspeed.ai/docs/config-json
    """
    parallelism = cfg.parallelism
    zero: dict[str, Any] = {
        "stage": parallelism.stage,
        "reduce_bucket_size": parallelism.reduce_bucket_size or "auto",
        "offload_optimizer": {"device": "cpu" if parallelism.offload in ("optimizer", "all") else "none"},
    }
    if parallelism.stage == 3:
        zero |= {
            "offload_param": {"device": "cpu" if parallelism.offload == "all" else "none"},
            "stage3_prefetch_bucket_size": "auto",
            "stage3_param_persistence_threshold": "auto",
            "stage3_max_live_parameters": parallelism.live_parameters,
            "stage3_max_reuse_distance": 0,  # free gathered weights after each use
            "stage3_gather_16bit_weights_on_model_save": True,  # in their own type
        }
    return {
        "train_micro_batch_size_per_gpu": cfg.batch.per_device,
        "gradient_accumulation_steps": cfg.accumulation.steps,
        "gradient_clipping": cfg.train.max_grad_norm,
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,  # torch's own, which work on flat buffers
        "zero_force_ds_cpu_optimizer": False,  # torch's own on the CPU too
        # DeepSpeed's own bf16 mode: weights and gradients in bf16, of which the optimizer has fp32 copies. Without it
        # (precision.weights=fp32) bf16 is autocast. Empty, so that neither Accelerate nor the Trainer turns it on.
        "bf16": {"enabled": True} if cfg.precision.copies else {},
        "fp16": {},
        "torch_autocast": {
            "enabled": cfg.precision.kind == "bf16" and not cfg.precision.copies,
            "dtype": "bfloat16",
            "lower_precision_safe_modules": [],
        },
    }


def accelerator_arguments(cfg: Config) -> dict[str, Any]:
    """What `Accelerator` is given. Needs the initialised process group."""
    _skip_kernel(cfg.target.device)
    return {"deepspeed_plugin": DeepSpeedPlugin(hf_ds_config=configuration(cfg), zero3_init_flag=False)}


def to_device(cfg: Config, model: torch.nn.Module) -> None:
    """Moves the model to its device, in place. Under stage 3 each rank moves its part of every weight alone."""
    if cfg.parallelism.stage != 3:
        model.to(cfg.target.device)
        return
    import deepspeed  # pyright: ignore[reportMissingImports]  # large, and so in no environment that checks types

    for name, buffer in model.named_buffers():
        fsdp.put_buffer(model, name, buffer.to(cfg.target.device))
    _skip_kernel(cfg.target.device)
    deepspeed.zero.Init(module=model, config_dict_or_path=configuration(cfg))


def _skip_kernel(device: str) -> None:
    if device == "cpu":
        from legroom.compat import deepspeed_private  # imports deepspeed

        deepspeed_private.skip_shared_memory_kernel()
