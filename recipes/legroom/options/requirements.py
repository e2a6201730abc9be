"""Checks of the facts in an option's YAML: packages, versions and hardware that the option needs."""

from packaging.requirements import Requirement

from legroom import paths
from legroom.config import GROUPS, Config
from legroom.config.fields import Facts
from legroom.machine import host
from legroom.options import menus


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

    packages = _package_problem(cfg, option, facts)
    if packages is not None:
        return [packages]

    gpu = cfg.target.gpu
    if gpu is None or not facts.min_capability:
        return []
    needed = tuple(int(number) for number in facts.min_capability.split("."))
    if gpu.capability >= needed:
        return []
    capability = ".".join(str(number) for number in gpu.capability)
    needs = f"{option} needs compute capability {facts.min_capability} or newer; {gpu.name} has {capability}"
    return [f"{needs}.{_choose(facts.instead)}"]


def _package_problem(cfg: Config, option: str, facts: Facts) -> str | None:
    """All the packages that are missing, or too old, in one line with the command that installs them."""
    needed, install = [], []
    without_package = cfg.predicts and facts.estimated_without_package
    if facts.package and not without_package and not host.has(facts.package):
        needed.append(f"the package {facts.package}")
        install.append(facts.package)
    for text in facts.requires or []:
        requirement = Requirement(text)
        problem = _version_problem(requirement)
        if problem is not None:
            needed.append(f"{requirement}, and {problem}")
            install.append(f"'{requirement}'")
    if not needed:
        return None
    instead = _installed_alternative(facts.instead)
    choice = f", or choose {instead}" if instead else ""
    return f"{option} needs {'; and '.join(needed)}: pip install {' '.join(install)}{choice}."


def _installed_alternative(instead: str | None) -> str | None:
    """What to choose instead: an option whose package is here, where several name each other."""
    while instead:
        group, _, name = instead.partition("=")
        facts = menus.option_values(group, name, [paths.CONF]).get("facts", {})
        package = facts.get("package")
        if package is None or host.has(package):
            return instead
        instead = facts.get("instead")
    return None


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
