"""The environment variables that a worker needs before the libraries read them, and its memory limit."""

import contextlib
import os
import socket
import sys
import tempfile
from collections.abc import Iterator
from urllib.parse import urlsplit

from legroom import paths
from legroom.config import Config
from legroom.errors import Refusal
from legroom.machine import host
from legroom.ranks.rank_info import RankInfo, export_environment

SIMULATIONS = "LEGROOM_SIMULATIONS"  # the folder in which the estimates of a sweep share simulated steps
HUB_TIMEOUT_SECONDS = 1.0  # how long the hub may take to answer before it counts as out of reach


def prepare_imports() -> None:
    """Set the variables that do not depend on the job and that libraries read when they are imported."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")


@contextlib.contextmanager
def quiet_libraries() -> Iterator[None]:
    """Inside, nothing that libraries print while they are imported and load reaches the terminal, also what code in C
    prints.

    With an error that is no Refusal all of it does, on stderr.
    """
    with tempfile.TemporaryFile("w+") as output, contextlib.ExitStack() as restore:
        for descriptor, stream in ((1, sys.stdout), (2, sys.stderr)):
            stream.flush()
            original = os.dup(descriptor)
            restore.callback(os.close, original)
            restore.callback(os.dup2, original, descriptor)
            os.dup2(output.fileno(), descriptor)
            restore.callback(stream.flush)
        try:
            yield
        except Refusal:
            raise
        except BaseException:
            restore.close()
            output.seek(0)
            print(output.read(), file=sys.stderr)
            raise


def prepare(cfg: Config, rank_info: RankInfo) -> None:
    """Set the variables of a job, before CUDA is initialized and before Accelerate and the tokenizers are used."""
    # A launcher's variables would change precision, accumulation and devices without a word in the configuration.
    for name in list(os.environ):
        if name.startswith(("ACCELERATE_", "FSDP_", "PARALLELISM_CONFIG_")):
            del os.environ[name]
    prepare_imports()
    export_environment(rank_info)
    if cfg.parallelism.nccl_p2p is False:
        os.environ["NCCL_P2P_DISABLE"] = "1"
    _choose_devices(cfg, rank_info)
    if _may_ask_hub(cfg) and not hub_answers():
        # Cached files still load, and missing ones fail at once instead of after retries.
        os.environ["HF_HUB_OFFLINE"] = "1"
        if "huggingface_hub" in sys.modules:  # imported before the job was known: it has read the variable already
            sys.modules["huggingface_hub"].constants.HF_HUB_OFFLINE = True


def _choose_devices(cfg: Config, rank_info: RankInfo) -> None:
    """Set which GPUs the worker sees."""
    if cfg.predicts:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    elif cfg.target.on_gpu and cfg.parallelism.kind != "dp":
        # One device, also where several are visible: the Trainer would use them all.
        os.environ["CUDA_VISIBLE_DEVICES"] = host.gpus()[rank_info.local_rank].uuid
        host.gpus.cache_clear()
        cfg.target = host.target(cfg)
        if "LOCAL_RANK" in os.environ:  # DDP and DeepSpeed take it for the index of the device, of which there is one
            os.environ["LOCAL_RANK"] = "0"
    elif not cfg.target.on_gpu:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        os.environ["DS_ACCELERATOR"] = "cpu"  # by default DeepSpeed takes the device that torch is built for


def _may_ask_hub(cfg: Config) -> bool:
    """Whether the job names a model, a tokenizer, a kernel or a data set that is not a local folder."""
    if cfg.data.kind in ("mrpc", "wikitext") and cfg.data.path is None:
        return True
    names = [cfg.model.pretrained]
    if cfg.data.tokenizer != "bytes":
        names.append(cfg.data.tokenizer)
    if "/" in cfg.model.attention:
        names.append(cfg.model.attention)
    return any(name and not paths.expanded(name).exists() for name in names)


def hub_answers() -> bool:
    """Whether the hub can be reached; assumed behind a proxy, where a connection says nothing."""
    if any(os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")):
        return True
    hub = urlsplit(os.environ.get("HF_ENDPOINT", "https://huggingface.co"))
    try:
        socket.create_connection((hub.hostname, hub.port or 443), timeout=HUB_TIMEOUT_SECONDS).close()
    except (OSError, TypeError):
        return False
    return True


def limit_memory(cfg: Config) -> None:
    """Apply launch.memory_limit_gib: to CUDA's allocator, or on a CPU to the data segment of this process."""
    if cfg.launch.memory_limit_gib is None:
        return
    limit_bytes = int(cfg.launch.memory_limit_gib * 2**30)
    if cfg.target.on_gpu:
        import torch

        total_bytes = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, limit_bytes / total_bytes))
    else:
        limit_data(limit_bytes)


def limit_data(limit_bytes: int) -> None:
    """Let this process allocate so much more than the imported libraries occupy, which are no part of it."""
    import resource

    import psutil

    imported_bytes = getattr(psutil.Process().memory_info(), "data", 0)
    _, hard_limit = resource.getrlimit(resource.RLIMIT_DATA)  # stays, so that `lift_memory_limit` can go back to it
    resource.setrlimit(resource.RLIMIT_DATA, (imported_bytes + limit_bytes, hard_limit))


def lift_memory_limit() -> None:
    """Take back what `limit_memory` set for a CPU: a record of the end must be written where the memory ran out."""
    if sys.platform == "linux":
        import resource

        _, hard_limit = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (hard_limit, hard_limit))
