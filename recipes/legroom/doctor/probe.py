"""Try the libraries in a separate process, so that one that crashes does not end the doctor.

The parent calls `run`. The child runs `imports` and `devices` and the functions below them, which may import anything.
"""

import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from typing import Any

from legroom.machine import interpreter

SECONDS = 120  # of one probe: reading torch from a cold disk can take long; most machines need some seconds
PREFIX = "probe result: "  # marks our lines on stdout, where libraries print too
MODULES = {
    "hydra-core": "hydra",
    "nvidia-ml-py": "pynvml",
    "pyyaml": "yaml",
    "torch-optimi": "optimi",
    "hydra-joblib-launcher": "hydra_plugins.hydra_joblib_launcher",
    "hydra-submitit-launcher": "hydra_plugins.hydra_submitit_launcher",
    "transformers": "transformers.trainer",
}  # `import transformers` alone loads nothing that trains


# --- in the parent -------------------------------------------------------------------------------------


def run(code: str, seconds: float = SECONDS, began: Callable[[str], None] = lambda name: None) -> dict[str, dict]:
    """Run code that calls `probe` in a new interpreter. Returns probe -> its facts, with 'error' where it failed.

    A probe that began and did not end has the end of the process as its error; where none began, 'python' has it.
    seconds: that one probe may take. began: called with the name of each as it begins.
    """
    results: dict[str, dict | None] = {}
    timed_out = threading.Event()
    with (
        tempfile.TemporaryFile() as errors,
        subprocess.Popen(
            [sys.executable, "-c", code],
            stdout=subprocess.PIPE,
            stderr=errors,
            stdin=subprocess.DEVNULL,
            env=os.environ | {"PYTHONPATH": interpreter.python_path(), "HF_HUB_OFFLINE": "1"},
        ) as process,
    ):

        def end_process() -> None:
            timed_out.set()
            process.kill()

        limit = threading.Timer(seconds, end_process)
        limit.start()
        assert process.stdout is not None
        for line in process.stdout:
            text = line.decode(errors="replace")
            if not text.startswith(PREFIX):
                continue
            limit.cancel()
            limit = threading.Timer(seconds, end_process)
            limit.start()
            for name, facts in json.loads(text.removeprefix(PREFIX)).items():
                results[name] = facts
                if facts is None:
                    began(name)
        exit_code = process.wait()
        limit.cancel()
        errors.seek(0)
        printed = errors.read().decode(errors="replace")
    if timed_out.is_set():
        error = f"no answer in {seconds:.0f} s"
    else:
        error = _exit_text(exit_code, printed)
    if exit_code and not results:
        results = {"python": None}
    return {name: {"error": error} if facts is None else facts for name, facts in results.items()}


def _exit_text(code: int, errors: str) -> str:
    if code < 0:
        return f"its process was killed by {signal.Signals(-code).name}"
    lines = errors.strip().splitlines()
    return f"its process ended with {code}: {lines[-1] if lines else ''}"


def failures(probes: dict[str, dict], start: str) -> dict[str, str]:
    """Probe -> error, of the probes whose name begins with `start` and that failed, but not for want of memory."""
    errors = {}
    for name, facts in probes.items():
        if name.startswith(start) and "error" in facts and not is_out_of_memory(facts):
            errors[name] = facts["error"]
    return errors


def is_out_of_memory(facts: dict) -> bool:
    """Whether a probe failed only because other programs hold the GPU's memory."""
    return "out of memory" in facts.get("error", "").lower()


# --- in the child --------------------------------------------------------------------------------------


def probe(name: str, function: Callable[..., dict], *arguments: Any) -> dict:
    """Call a function, and print that it begins and then the facts that it returned, or its error."""
    print(PREFIX + json.dumps({name: None}), flush=True)
    try:
        facts = function(*arguments)
    except (Exception, SystemExit) as error:
        message = str(error).strip().partition("\n")[0]
        facts = {"error": f"{type(error).__name__}: {message}"}
    print(PREFIX + json.dumps({name: facts}), flush=True)
    return facts


def imports(names: list[str]) -> None:
    """Import packages one after the other."""
    for name in names:
        module = MODULES.get(name, name.replace("-", "_"))
        probe(name, _import, module)


def _import(module: str) -> dict:
    importlib.import_module(module)
    return {}


def devices(bitsandbytes: bool) -> None:
    """What CUDA torch is built for, a small product on each device, and a step of 8-bit AdamW there."""
    os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # CUDA's numbers are NVML's
    torch_facts = probe("torch", _torch)
    names = ["cpu"]
    if torch_facts.get("cuda"):
        count = probe("torch on CUDA", _cuda).get("count", 0)
        if count:
            names = [f"cuda:{n}" for n in range(count)]
        for n in range(count):
            probe(f"torch on cuda:{n}", _product, n)
    if bitsandbytes and "error" not in torch_facts and "error" not in probe("bitsandbytes", _bitsandbytes):
        for device in names:
            probe(f"bitsandbytes on {device}", _step_8bit, device)


def _torch() -> dict:
    import torch

    return {"cuda": torch.version.cuda}


def _cuda() -> dict:
    import torch

    torch.cuda.init()  # raises the reason, where is_available() only returns False
    return {"count": torch.cuda.device_count()}


def _product(n: int) -> dict:
    import torch

    ones = torch.ones(64, 64, device=f"cuda:{n}")
    if (ones @ ones).sum().item() != 64**3:
        raise ArithmeticError("a product of ones is wrong")
    return {"name": torch.cuda.get_device_name(n)}


def _bitsandbytes() -> dict:
    import bitsandbytes

    return {"version": bitsandbytes.__version__}


def _step_8bit(device: str) -> dict:
    import torch
    from bitsandbytes.optim.adamw import AdamW8bit

    weight = torch.nn.Parameter(torch.ones(64, 64, device=device))  # fewer than 4096 would keep 32-bit states
    weight.grad = torch.ones_like(weight)
    optimizer = AdamW8bit([weight], lr=0.1, weight_decay=0.0)
    optimizer.step()
    dtype = optimizer.state[weight]["state1"].dtype
    moved = (1 - weight).abs()  # Adam's first step is lr long
    if dtype != torch.uint8 or not ((moved > 0.09) & (moved < 0.11)).all().item():
        raise ArithmeticError(f"its first step went {moved.mean().item():.4f} where 0.1 is right, with {dtype} states")
    return {}
