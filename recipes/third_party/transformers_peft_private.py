"""How transformers imports peft: only for a job that trains an adapter.

Where peft is installed, transformers.trainer_utils imports it. peft imports bitsandbytes, and that imports torch's
compiler: a fifth of the time that a job takes to start, and in a fork server CUDA might be initialized. There is no
public switch. Import this module before transformers' Trainer; `use_peft` makes good what was put off.
"""

from __future__ import annotations

import transformers.utils
from transformers.utils import import_utils

from recipes.third_party.patching import patched

_is_peft_installed = import_utils.is_peft_available
_is_used = False


def _is_peft_available() -> bool:
    """transformers' own answer once the job uses peft; False before."""
    return _is_used and _is_peft_installed()


# What is imported here keeps the replacement, and with it the answer of the moment.
with (
    patched(import_utils, is_peft_available=_is_peft_available),
    patched(transformers.utils, is_peft_available=_is_peft_available),
):
    from transformers import trainer, trainer_utils


def use_peft() -> None:
    """Import peft, and give the Trainer the classes that it would have imported. ImportError without peft."""
    global _is_used
    import peft

    for name in ("PeftModel", "PeftMixedModel"):
        for module in (trainer, trainer_utils):
            setattr(module, name, getattr(peft, name))
    _is_used = True
