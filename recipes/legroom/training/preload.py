"""The imports that every job needs, done once before workers are forked."""

from legroom.machine import imports


def import_libraries() -> None:
    """Import what every job needs, which takes seconds in a new interpreter."""
    with imports.without_collecting():
        import legroom.compat.transformers_peft_private  # before transformers' Trainer
        import legroom.training.setup  # noqa: F401
