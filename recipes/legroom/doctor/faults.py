"""Which of the doctor's findings are broken, and what to do about each."""

import platform

from legroom import invocation
from legroom.doctor import probe
from legroom.doctor.checks import LEAST_FREE_BYTES, Findings
from legroom.machine.requirements import is_below
from legroom.units import GIB


def broken(findings: Findings) -> list[str]:
    """What keeps the project from running as it should, a sentence each with what to do."""
    lines = []
    if is_below(platform.python_version(), findings.python_bound):
        lines.append(f"Python {platform.python_version()} is below {findings.python_bound}: make a new environment.")
    missing = [package for package in findings.packages if package.version is None and package.extra is None]
    if missing:
        names = ", ".join(package.name for package in missing)
        lines.append(f"{names} not installed: {missing[0].install}")
    for package in findings.packages:
        name, version, bound = package.name, package.version, package.bound
        if version is None:
            continue
        if is_below(version, bound):
            lines.append(f"{name} {version} is below {bound}: pip install --upgrade '{name}>={bound}'")
        elif package.error:
            lines.append(f"{name} {version} cannot be imported ({package.error}): pip install --force-reinstall {name}")
    if findings.driver.broken:
        lines.append(
            f"the NVIDIA driver does not work ({findings.driver.error}): restart the machine; if that does not "
            "help, install the driver again."
        )
    if findings.jobs_error:
        lines.append(
            f"no job can start: NVML does not tell what a job asks of the GPUs ({findings.jobs_error}). "
            f"CUDA_VISIBLE_DEVICES= {invocation.command()} ... runs on the CPU."
        )
    lines += torch_broken(findings)
    for name, error in probe.failures(findings.probes, "bitsandbytes on").items():
        lines.append(
            f"8-bit AdamW fails, {name} ({error}): pip install --upgrade bitsandbytes, or choose "
            "optim=adafactor. python -m bitsandbytes says more."
        )
    if "error" in findings.probes.get("python", {}):
        lines.append(f"a new Python process fails here ({findings.probes['python']['error']}).")
    for content, (folder, free) in findings.host.disks.items():
        if free < LEAST_FREE_BYTES:
            lines.append(f"{free / GIB:.2f} GiB free where {content} lies ({folder}): make room, at least 1 GiB.")
    return lines


def torch_broken(findings: Findings) -> list[str]:
    """Where torch, built for CUDA, cannot use the GPUs that NVML shows to a job."""
    if not findings.torch_cuda or not findings.jobs_gpus:
        return []
    errors = [f"{name}: {error}" for name, error in probe.failures(findings.probes, "torch on").items()]
    count = findings.probes.get("torch on CUDA", {}).get("count")
    has_mig = any(card.mig for card in findings.cards)  # of which torch sees one slice
    if not errors and count is not None and count < len(findings.jobs_gpus) and not has_mig:
        errors = [f"NVML shows {len(findings.jobs_gpus)} GPUs, torch {count}"]
    return [
        f"torch {findings.version('torch')} cannot use the GPU ({error}). It is built for CUDA {findings.torch_cuda}, "
        f"the driver knows CUDA up to {findings.driver.cuda or '?'}: update the driver, or take the pip line "
        "for an older CUDA from pytorch.org/get-started."
        for error in errors
    ]
