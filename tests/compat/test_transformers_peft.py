"""transformers and peft: what `legroom.compat.transformers_peft_private` relies on."""

import subprocess
import sys

import pytest

pytest.importorskip("peft")

# In a process of its own: whether peft has been imported is a property of a process.
PROGRAM = """
import sys
from legroom.compat import transformers_peft_private
from legroom.training import preload
preload.import_libraries()
assert "transformers.trainer" in sys.modules
assert not {"peft", "bitsandbytes", "torchao"} & set(sys.modules)

from transformers import trainer_optimizer
from transformers.utils import import_utils
assert trainer_optimizer.is_torchao_available() == import_utils.is_torchao_available()  # which was put off

import pathlib
import transformers.models
init, structure_of = pathlib.Path(transformers.models.__file__), import_utils.create_import_structure_from_path
assert transformers_peft_private._structure_of is structure_of  # as it was, for what comes later
read = structure_of.cache_info().misses
structure_of(init.parent)
assert structure_of.cache_info().misses == read  # read once: `transformers.models` asked for its __init__.py
assert init.name == "__init__.py" and structure_of(str(init)) == structure_of(init.parent)

from torch import nn
from transformers import trainer, trainer_utils
layer = nn.Sequential(nn.Linear(2, 2))
assert not trainer_utils._is_peft_model(layer)

transformers_peft_private.use_peft()
import peft
adapted = peft.get_peft_model(layer, peft.LoraConfig(target_modules=["0"]))
assert trainer_utils._is_peft_model(adapted) and not trainer_utils._is_peft_model(layer)
assert trainer.PeftModel is trainer_utils.PeftModel is peft.PeftModel
"""


@pytest.mark.slow
def test_peft_is_imported_by_jobs_that_use_it():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
