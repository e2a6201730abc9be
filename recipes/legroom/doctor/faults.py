"""Which of the doctor's findings are broken, and what to do about each."""

import platform

from legroom import invocation
from legroom.doctor import probe
from legroom.doctor.checks import LEAST_FREE_BYTES, Findings
from legroom.machine.requirements import is_below
from legroom.units import GIB


def broken(found: Findings) -> list[str]:
    """What keeps the project from running as it should, a sentence each with what to do."""
    lines = []
    if is_below(platform.python_version(), found.python_bound):
        lines.append(f"Python {platform.python_version()} is below {found.python_bound}: make a new environment.")
    missing = [p for p in found.packages if p.version is None and p.extra is None]
    if missing:
        lines.append(f"{', '.join(p.name for p in missing)} not installed: {missing[0].install}")
    for p in (p for p in found.packages if p.version is not None):
        if is_below(p.version, p.bound):
            lines.append(f"{p.name} {p.version} is below {p.bound}: pip install --upgrade '{p.name}>={p.bound}'")
        elif p.error:
            lines.append(f"{p.name} {p.version} cannot be imported ({p.error}): pip install --force-reinstall {p.name}")
    if found.driver.broken:
        lines.append(
            f"the NVIDIA driver does not work ({found.driver.error}): restart the machine; if that does not "
            "help, install the driver again."
        )
    if found.jobs_error:
        lines.append(
            f"no job can start: NVML does not tell what a job asks of the GPUs ({found.jobs_error}). "
            f"CUDA_VISIBLE_DEVICES= {invocation.command()} ... runs on the CPU."
        )
    lines += torch_broken(found)
    for name, error in probe.failures(found.probes, "bitsandbytes on").items():
        lines.append(
            f"8-bit AdamW fails, {name} ({error}): pip install --upgrade bitsandbytes, or choose "
            "optim=adafactor. python -m bitsandbytes says more."
        )
    if "error" in found.probes.get("python", {}):
        lines.append(f"a new Python process fails here ({found.probes['python']['error']}).")
    for what, (folder, free) in found.host.disks.items():
        if free < LEAST_FREE_BYTES:
            lines.append(f"{free / GIB:.2f} GiB free where {what} lies ({folder}): make room, at least 1 GiB.")
    return lines


def torch_broken(found: Findings) -> list[str]:
    """Where torch, built for CUDA, cannot use the GPUs that NVML shows to a job."""
    if not found.torch_cuda or not found.jobs_gpus:
        return []
    errors = [f"{name}: {error}" for name, error in probe.failures(found.probes, "torch on").items()]
    count = found.probes.get("torch on CUDA", {}).get("count")
    if not errors and count is not None and count < len(found.jobs_gpus) and not any(c.mig for c in found.cards):
        errors = [f"NVML shows {len(found.jobs_gpus)} GPUs, torch {count}"]
    return [
        f"torch {found.version('torch')} cannot use the GPU ({error}). It is built for CUDA {found.torch_cuda}, "
        f"the driver knows CUDA up to {found.driver.cuda or '?'}: update the driver, or take the pip line "
        "for an older CUDA from pytorch.org/get-started."
        for error in errors
    ]
