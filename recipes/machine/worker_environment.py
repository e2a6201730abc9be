"""What must stand in a worker's environment before the libraries are imported, and the limits it runs under."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from urllib.parse import urlsplit

from recipes.machine import host
from recipes.ranks import rank_info
from recipes.units import GIB

HUB_TIMEOUT_SECONDS = 1.0  # how long a hub may take to answer before it counts as out of reach


def prepare(cfg, place: rank_info.RankInfo) -> None:
    """What must stand before the libraries are imported."""
    # What a launcher says would change precision, accumulation and devices behind the configuration's back.
    for name in list(os.environ):
        if name.startswith(("ACCELERATE_", "FSDP_", "PARALLELISM_CONFIG_")):
            del os.environ[name]
    rank_info.export_environment(place)
    if cfg.parallelism.nccl_p2p is False:
        os.environ["NCCL_P2P_DISABLE"] = "1"
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    if cfg.recipe.name == "estimate":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    elif host.device(cfg) == "cuda" and cfg.parallelism.name != "dp":
        # One device, also where several are visible: the Trainer would take them all.
        os.environ["CUDA_VISIBLE_DEVICES"] = host.gpus()[place.local_rank].uuid
        host.gpus.cache_clear()
        if "LOCAL_RANK" in os.environ:  # the device's number for DDP and DeepSpeed, and of one there is only 0
            os.environ["LOCAL_RANK"] = "0"
    elif host.device(cfg) == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        os.environ["DS_ACCELERATOR"] = "cpu"  # DeepSpeed looks at what torch is built for otherwise
    if _may_ask_hub(cfg) and not _hub_answers():
        os.environ["HF_HUB_OFFLINE"] = (
            "1"  # what is cached still loads, and what is not fails at once, not after retries
        )
        if "huggingface_hub" in sys.modules:  # a fork server's child: the variable has been read already
            sys.modules["huggingface_hub"].constants.HF_HUB_OFFLINE = True


def _may_ask_hub(cfg) -> bool:
    """Whether the job names a model, a tokenizer or a data set that is no folder here."""
    names = [cfg.model.pretrained, cfg.data.tokenizer if cfg.data.tokenizer != "bytes" else None]
    data_on_hub = cfg.data.name in ("mrpc", "wikitext") and cfg.data.path is None
    return data_on_hub or any(name and not Path(name).expanduser().exists() for name in names)


def _hub_answers() -> bool:
    """Whether the hub can be reached. Behind a proxy nobody can tell so simply: yes, then."""
    if any(os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")):
        return True
    hub = urlsplit(os.environ.get("HF_ENDPOINT", "https://huggingface.co"))
    try:
        socket.create_connection((hub.hostname, hub.port or 443), timeout=HUB_TIMEOUT_SECONDS).close()
    except (OSError, TypeError):
        return False
    return True


def limit_memory(cfg) -> None:
    """Pretend that the device is smaller: CUDA's share for this process, or the process's data on a CPU."""
    if cfg.launch.memory_limit_gib is None:
        return
    size = int(cfg.launch.memory_limit_gib * GIB)
    if host.device(cfg) == "cuda":
        import torch

        torch.cuda.set_per_process_memory_fraction(min(1.0, size / torch.cuda.get_device_properties(0).total_memory))
    else:
        import resource

        import psutil

        # On top of what the libraries hold: the limit stands for a device, and they live on the host.
        held = getattr(psutil.Process().memory_info(), "data", 0)
        resource.setrlimit(resource.RLIMIT_DATA, (held + size, held + size))
