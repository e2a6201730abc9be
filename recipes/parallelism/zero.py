"""zero: DeepSpeed's ZeRO, which Accelerate drives. Needs the package deepspeed.

DeepSpeed keeps the trained weights in flat buffers that a rank holds a part of, and takes the optimizer's
step itself, inside the last `accelerator.backward` of an accumulation.
"""

from __future__ import annotations

from recipes.machine import host
from recipes.parallelism import fsdp


def configuration(cfg) -> dict:
    """DeepSpeed's configuration. What Accelerate and the Trainer fill in from the model is 'auto'.

    Keys: https://www.deepspeed.ai/docs/config-json
    """
    own = cfg.parallelism
    zero = {
        "stage": own.stage,
        "reduce_bucket_size": "auto",
        "offload_optimizer": {"device": "none" if own.offload == "none" else "cpu"},
    }
    if own.stage == 3:
        zero |= {
            "offload_param": {"device": "cpu" if own.offload == "all" else "none"},
            "stage3_prefetch_bucket_size": "auto",
            "stage3_param_persistence_threshold": "auto",
            "stage3_max_live_parameters": own.live_parameters,
            "stage3_max_reuse_distance": 0,  # give weights back after use, also those that are needed again soon
            "stage3_gather_16bit_weights_on_model_save": True,  # in the type that they have: fp32 here
        }
    return {
        "train_micro_batch_size_per_gpu": cfg.batch.per_device,
        "gradient_accumulation_steps": cfg.accumulation.steps,
        "gradient_clipping": cfg.train.max_grad_norm,
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,  # torch's own, which works on any flat piece
        "zero_force_ds_cpu_optimizer": False,  # torch's own on the host too
        # Empty, so that neither Accelerate nor the Trainer turns on what DeepSpeed calls bf16: bf16 weights with
        # fp32 copies. Ours is autocast over fp32 weights; no module's weights and gradients travel in less.
        "bf16": {},
        "fp16": {},
        "torch_autocast": {
            "enabled": cfg.precision.name == "bf16",
            "dtype": "bfloat16",
            "lower_precision_safe_modules": [],
        },
    }


def accelerator_arguments(cfg) -> dict:
    """What `Accelerator` takes. Call it once the process group stands."""
    from accelerate import DeepSpeedPlugin

    _skip_kernel(host.device(cfg))
    return {"deepspeed_plugin": DeepSpeedPlugin(hf_ds_config=configuration(cfg), zero3_init_flag=False)}


def place(cfg, model, device: str) -> None:
    """The model on its device; under stage 3 each rank's part of every weight, with never the whole there. In place."""
    if cfg.parallelism.stage != 3:
        model.to(device)
        return
    import deepspeed

    for name, buffer in model.named_buffers():
        fsdp.put_buffer(model, name, buffer.to(device))
    _skip_kernel(device)
    deepspeed.zero.Init(module=model, config_dict_or_path=configuration(cfg))


def _skip_kernel(device: str) -> None:
    """Leave out a kernel for inference that DeepSpeed would compile on every CPU at its first start."""
    import deepspeed

    if device == "cpu":
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
