"""zero: DeepSpeed's ZeRO, which Accelerate drives. Needs the package deepspeed.

DeepSpeed keeps the trained weights in flat buffers that a rank holds a part of, and takes the optimizer's
step itself, inside the last `accelerator.backward` of an accumulation.
"""

from __future__ import annotations

from recipes import sharding
from recipes.machine import host


def problems(cfg, on_gpu: bool) -> list[str]:
    """What ZeRO needs, and what would mean something else under it. Asked for parallelism=zero."""
    own, found = cfg.parallelism, []
    if not host.has("deepspeed"):
        found.append("parallelism=zero needs the package deepspeed: pip install deepspeed, or choose parallelism=fsdp.")
    if own.offload == "all" and own.stage != 3:
        found.append(f"parallelism.offload=all moves weights that only stage 3 shares out, not stage {own.stage}. "
                     "Type parallelism.stage=3, or parallelism.offload=optimizer.")
    if own.offload != "none" and not on_gpu:
        found.append("parallelism.offload moves states from a GPU to the host; there is no GPU here. Leave it out.")
    if "8bit" in cfg.optim.transformers_name or cfg.optim.name == "adafactor":
        why = ("its rows and columns are" if cfg.optim.name == "adafactor" else "its embeddings in 32 bits are")
        found.append(f"optim={cfg.optim.name} would see flat pieces of many weights under parallelism=zero, in which "
                     f"{why} lost. Choose optim=adamw, or parallelism=ddp.")
    if cfg.precision.name == "fp16":
        found.append("precision=fp16: DeepSpeed clips gradients before it takes the loss scale out of them, and never "
                     "lowers the scale under autocast. Choose precision=bf16, or parallelism=fsdp.")
    if cfg.precision.name == "bf16_pure":
        found.append("precision=bf16_pure: DeepSpeed keeps fp32 copies of the weights beside those in bf16. "
                     "Choose precision=bf16, or parallelism=fsdp.")
    if cfg.eval.precision:
        found.append("eval.precision casts the whole model, which parallelism=zero keeps in flat pieces. Leave it out.")
    if cfg.save.every_steps or cfg.resume:
        found.append("save.every_steps and resume: checkpoints of parallelism=zero are not written, since what "
                     "DeepSpeed writes must be unpickled. Leave them out, or choose parallelism=fsdp.")
    return found


def warnings(cfg) -> list[str]:
    """What is not done, and what the ledger cannot tell. Asked for parallelism=zero."""
    found = []
    if cfg.save.on_signal:
        found.append("parallelism=zero saves no checkpoint when a signal ends it: the run cannot be resumed.")
    if cfg.measure.ledger:
        found.append("parallelism=zero: of the gradients the ledger sees the pieces that the optimizer finds; what "
                     "they are reduced from, and DeepSpeed's buffers, are in 'other'.")
    return found


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
        "torch_autocast": {"enabled": cfg.precision.name == "bf16", "dtype": "bfloat16",
                           "lower_precision_safe_modules": []},
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
        sharding.put_buffer(model, name, buffer.to(device))
    _skip_kernel(device)
    deepspeed.zero.Init(module=model, config_dict_or_path=configuration(cfg))


def _skip_kernel(device: str) -> None:
    """Leave out a kernel for inference that DeepSpeed would compile on every CPU at its first start."""
    import deepspeed

    if device == "cpu":
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
