"""The imports that every job needs, done once before workers are forked."""

from __future__ import annotations


def import_libraries(eight_bit: bool = False) -> None:
    """Import what every job needs, which takes seconds in a new interpreter. eight_bit: bitsandbytes too."""
    import legroom.third_party.transformers_peft_private  # before transformers' Trainer
    import legroom.training.setup  # noqa: F401

    if eight_bit:
        import bitsandbytes  # noqa: F401
