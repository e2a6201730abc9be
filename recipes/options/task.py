"""Whether a configuration trains a classifier or a language model."""

from __future__ import annotations

from recipes.options import model_families


def task(cfg) -> str | None:
    """'classification' or 'language_modelling': what the data asks for, else what the family is made for.

    None for trained weights whose family only their own configuration tells.
    """
    from recipes.options.task import TASKS

    if cfg.data.name in TASKS:
        return TASKS[cfg.data.name]
    if cfg.data.task is not None:
        return cfg.data.task
    if cfg.model.pretrained:
        return None
    return "classification" if cfg.model.family in model_families.ENCODERS else "language_modelling"


def task_of(cfg, config) -> str:
    """`task(cfg)`, asking the loaded configuration where the menus do not know."""
    known = task(cfg)
    if known is not None:
        return known
    causal = any(a.endswith(("ForCausalLM", "LMHeadModel")) for a in config.architectures or [])
    return "language_modelling" if causal else "classification"


TASKS = {"source": "language_modelling", "wikitext": "language_modelling", "mrpc": "classification"}  # the others: any
