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
    without_package = cfg.predicts and facts.estimated_without_package
    if facts.package and not without_package and not host.has(facts.package):
        return [f"{option} needs the package {facts.package}: pip install {facts.package}{instead}."]
    for text in facts.requires or []:
        requirement = Requirement(text)
        problem = _version_problem(requirement)
        if problem is not None:
            return [f"{option} needs {requirement}, and {problem}: pip install '{requirement}'{instead}."]

    gpu = cfg.target.gpu
    if gpu is None or not facts.min_capability:
        return []
    needed = tuple(int(number) for number in facts.min_capability.split("."))
    if gpu.capability >= needed:
        return []
    capability = ".".join(str(number) for number in gpu.capability)
    needs = f"{option} needs compute capability {facts.min_capability} or newer; {gpu.name} has {capability}"
    return [f"{needs}.{_choose(facts.instead)}"]


def _version_problem(requirement: Requirement) -> str | None:
    """What is installed in place of a required version; None where the version is right."""
    installed = host.version(requirement.name)
    if installed is None:
        return "it is not installed"
    if requirement.specifier.contains(installed, prereleases=True):
        return None
    return f"{requirement.name} {installed} is installed"


def _choose(instead: str | None) -> str:
    return f" Choose {instead}." if instead else ""
