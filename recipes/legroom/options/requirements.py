"""Checks of the facts in an option's YAML: packages, versions and hardware that the option needs."""

from packaging.requirements import Requirement

from legroom.config import GROUPS, Config
from legroom.config.fields import Facts
from legroom.machine import host


def problems(cfg: Config, group: str) -> list[str]:
    """Why the chosen option of a menu cannot run here, by its facts: one line at most. Empty for any other field."""
    if group not in GROUPS:
        return []
    facts: Facts = getattr(cfg, group).facts
    option = f"{group}={getattr(cfg, group).name}"
    if cfg.predicts and facts.not_estimated:
        return [f"recipe=estimate does not support {option}: {facts.not_estimated}"]
    if facts.needs_gpu and not cfg.target.on_gpu:  # no package helps here
        return [f"{option} needs a GPU: {facts.needs_gpu}.{_choose(facts.instead_on_cpu)}"]
    instead = f", or choose {facts.instead}" if facts.instead else ""
    estimated = cfg.predicts and facts.estimated_without_package
    if facts.package and not estimated and not host.has(facts.package):
        return [f"{option} needs the package {facts.package}: pip install {facts.package}{instead}."]
    for requirement in map(Requirement, facts.requires or []):
        installed = host.version(requirement.name)
        if installed is None or not requirement.specifier.contains(installed, prereleases=True):
            found = f"{requirement.name} {installed} is installed" if installed else "it is not installed"
            return [f"{option} needs {requirement}, and {found}: pip install '{requirement}'{instead}."]
    gpu = cfg.target.gpu
    if gpu is not None and facts.min_capability and gpu.capability < tuple(map(int, facts.min_capability.split("."))):
        here = ".".join(map(str, gpu.capability))
        needs = f"{option} needs compute capability {facts.min_capability} or newer; {gpu.name} has {here}"
        return [f"{needs}.{_choose(facts.instead)}"]
    return []


def _choose(instead: str | None) -> str:
    return f" Choose {instead}." if instead else ""
