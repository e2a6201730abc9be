"""The imports that every job needs, done once before workers are forked."""

import gc


def import_libraries() -> None:
    """Import what every job needs, which takes seconds in a new interpreter."""
    collects = gc.isenabled()
    gc.disable()  # nothing that an import leaves is garbage, and searching through it takes a tenth of the time
    try:
        import legroom.compat.transformers_peft_private  # before transformers' Trainer
        import legroom.training.setup  # noqa: F401
    finally:
        # What was imported stays. Looking through it again takes a quarter of an estimate, and in a forked process
        # copies every page.
        gc.freeze()
        if collects:
            gc.enable()
