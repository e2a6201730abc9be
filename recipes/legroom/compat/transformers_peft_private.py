"""How transformers imports peft, only for a job that trains an adapter, and torchao, not at all at its start.

Where peft is installed, transformers.trainer_utils imports it. peft imports bitsandbytes, and that imports torch's
compiler: a fifth of the time that a job takes to start, and in a fork server CUDA might be initialized. There is no
public switch. Import this module before transformers' Trainer; `use_peft` makes good what was put off.

Where torchao is installed, transformers' quantizers import it. It asks for the GPU's capability while it is imported
(torchao 0.18, prototype/mx_formats/kernels.py), which initializes CUDA: no worker of a fork server could use the GPU.

Both transformers and transformers.models read the source of every model, 0.2 s each time: here the second is spared.
"""

from pathlib import Path
from typing import Any

import transformers.utils
from transformers.utils import import_utils

from legroom.compat.patching import patched

_is_peft_installed, _is_torchao_installed = import_utils.is_peft_available, import_utils.is_torchao_available
_structure_of = import_utils.create_import_structure_from_path  # keeps what it has returned, by its argument
_is_used, _is_imported = False, False


def _is_peft_available() -> bool:
    """transformers' own answer once the job uses peft; False before."""
    return _is_used and _is_peft_installed()


def _is_torchao_available(*version: str) -> bool:
    """transformers' own answer once transformers is imported; False before."""
    return _is_imported and _is_torchao_installed(*version)


def _structure_of_folder(path: str | Path) -> Any:
    """transformers' own answer, with a folder in place of its __init__.py, as transformers itself asks."""
    return _structure_of(Path(path).parent if Path(path).name == "__init__.py" else path)


_ANSWERS = {"is_peft_available": _is_peft_available, "is_torchao_available": _is_torchao_available}

# What is imported here keeps the replacement, and with it the answer of the moment.
_structure = patched(import_utils, create_import_structure_from_path=_structure_of_folder)
with patched(import_utils, **_ANSWERS), patched(transformers.utils, **_ANSWERS), _structure:
    from transformers import trainer, trainer_utils
_is_imported = True


def use_peft() -> None:
    """Import peft, and give the Trainer the classes that it would have imported. ImportError without peft."""
    global _is_used
    import peft

    for name in ("PeftModel", "PeftMixedModel"):
        for module in (trainer, trainer_utils):
            setattr(module, name, getattr(peft, name))
    _is_used = True
