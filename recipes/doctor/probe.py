"""Try the libraries in processes of their own, so that one that crashes is seen and not shared.

The parent calls `ask`; everything below it runs in the child, which imports what it likes.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys

from recipes.machine import interpreter

SECONDS = 120  # a cold disk takes its time to read torch; most machines need some seconds
MARK = "told: "  # stands before what a probe tells; libraries print on the same stream
MODULES = {
    "hydra-core": "hydra",
    "nvidia-ml-py": "pynvml",
    "pyyaml": "yaml",
    "hydra-joblib-launcher": "hydra_plugins.hydra_joblib_launcher",
    "hydra-submitit-launcher": "hydra_plugins.hydra_submitit_launcher",
    "transformers": "transformers.trainer",
}  # `import transformers` alone loads nothing that trains


def ask(code: str, seconds: float = SECONDS) -> dict[str, dict]:
    """Run code that calls `attempt` in a new interpreter: part -> what it told.

    A part that began and never ended has the end of the process as its error; where none began, 'python' has it.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=seconds,
            env=os.environ | {"PYTHONPATH": interpreter.python_path(), "HF_HUB_OFFLINE": "1"},
        )
        out, end = done.stdout, _ending(done.returncode, done.stderr.decode(errors="replace"))
        failed = done.returncode != 0
    except subprocess.TimeoutExpired as late:
        out, end, failed = late.stdout or b"", f"no answer in {seconds:.0f} s", True
    told = {}
    for line in out.decode(errors="replace").splitlines():
        if line.startswith(MARK):
            told |= json.loads(line.removeprefix(MARK))
    if failed and not told:
        told = {"python": None}
    return {part: {"error": end} if facts is None else facts for part, facts in told.items()}


def _ending(code: int, errors: str) -> str:
    if code < 0:
        return f"its process was killed by {signal.Signals(-code).name}"
    return f"its process ended with {code}: {(errors.strip().splitlines() or [''])[-1]}"


def attempt(part: str, work, *arguments) -> dict:
    """Tell that a part begins, then what it gave, or why it failed."""
    print(MARK + json.dumps({part: None}), flush=True)
    try:
        facts = work(*arguments)
    except (Exception, SystemExit) as error:
        facts = {"error": f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"}
    print(MARK + json.dumps({part: facts}), flush=True)
    return facts


def imports(names: list[str]) -> None:
    """Import packages one after the other."""
    for name in names:
        attempt(name, lambda: importlib.import_module(MODULES.get(name, name.replace("-", "_"))) and {})


def devices(bitsandbytes: bool) -> None:
    """What torch sees, a small product on each device, and a step of 8-bit AdamW there."""
    os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # CUDA's numbers are NVML's
    told = attempt("torch", _torch)
    where = ["cpu"]
    if told.get("cuda"):
        count = attempt("torch on CUDA", _cuda).get("count", 0)
        where = [f"cuda:{n}" for n in range(count)] or where
        for n in range(count):
            attempt(f"torch on cuda:{n}", _product, n)
    if bitsandbytes and "error" not in told and "error" not in attempt("bitsandbytes", _bitsandbytes):
        for device in where:
            attempt(f"bitsandbytes on {device}", _step_8bit, device)


def _torch() -> dict:
    import torch

    return {"cuda": torch.version.cuda}


def _cuda() -> dict:
    import torch

    torch.cuda.init()  # says why it cannot, where is_available() says False
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
    from bitsandbytes.optim import AdamW8bit

    weight = torch.nn.Parameter(torch.ones(64, 64, device=device))  # fewer than 4096 would keep 32-bit states
    weight.grad = torch.ones_like(weight)
    optimizer = AdamW8bit([weight], lr=0.1, weight_decay=0.0)
    optimizer.step()
    state, moved = optimizer.state[weight]["state1"].dtype, (1 - weight).abs()
    if state != torch.uint8 or not ((moved > 0.09) & (moved < 0.11)).all().item():  # Adam's first step is lr long
        raise ArithmeticError(f"its first step went {moved.mean().item():.4f} where 0.1 is right, with {state} states")
    return {}
