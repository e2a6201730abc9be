"""What a script would write or send stays here: trackers, uploads and checkpoints do nothing, and files that its Python
code writes land in a folder that is removed.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.abc
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from legroom.foresight.programs import written_files

# Variables that name a folder in which a library writes beside the script.
FOLDERS = {
    "TMPDIR": "tmp",
    "HF_DATASETS_CACHE": "datasets",
    "MPLCONFIGDIR": "matplotlib",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TRITON_CACHE_DIR": "triton",
    "WANDB_DIR": "wandb",
    "XDG_STATE_HOME": "state",
}
SETTINGS = {
    "WANDB_MODE": "disabled",
    "TRACKIO_MODE": "disabled",
    "COMET_MODE": "disabled",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
}
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
# Where downloads that the script asks for are kept for the next time: (variable, folder below the home).
DOWNLOADS = (
    ("HF_HOME", ".cache/huggingface"),
    ("HF_HUB_CACHE", ".cache/huggingface/hub"),
    ("TORCH_HOME", ".cache/torch"),
)
# What does nothing, by the module whose import brings it: it would write checkpoints, or send something.
NOTHING = {
    "torch.distributed.checkpoint": ("save", "async_save"),
    "torchvision.utils": ("save_image",),
    "safetensors.torch": ("save_file", "save_model"),
    "transformers.modeling_utils": ("PreTrainedModel.save_pretrained",),
    "transformers.tokenization_utils_base": ("PreTrainedTokenizerBase.save_pretrained",),
    "transformers.utils.hub": ("PushToHubMixin.push_to_hub",),
    "transformers.trainer": ("Trainer.push_to_hub", "Trainer.create_model_card"),
    "trl.trainer.base_trainer": ("_BaseTrainer.create_model_card",),
    "peft.peft_model": ("PeftModel.save_pretrained",),
    "diffusers.models.modeling_utils": ("ModelMixin.save_pretrained",),
    "diffusers.pipelines.pipeline_utils": ("DiffusionPipeline.save_pretrained",),
    "accelerate.accelerator": ("Accelerator.save_state", "Accelerator.save_model", "Accelerator.save"),
    "huggingface_hub.hf_api": (
        *(f"HfApi.{name}" for name in ("upload_file", "upload_folder", "upload_large_folder", "create_commit")),
        *("HfApi.create_repo", "HfApi.create_branch", "HfApi.create_tag"),
        *("upload_file", "upload_folder", "upload_large_folder", "create_commit", "create_repo", "create_branch"),
    ),
}
# What is done by a function of ours, by the module whose import brings it: function(its own, note, ...).
INSTEAD = {name: {"save": "saved:save", "load": "saved:load"} for name in ("torch", "torch.serialization")}


def set_environment(folder: Path, offline: bool) -> None:
    """Before any library is imported: caches go to `folder`, trackers are off."""
    for name, place in FOLDERS.items():
        (folder / place).mkdir(exist_ok=True)
        os.environ[name] = str(folder / place)
    os.environ.update(SETTINGS | (OFFLINE if offline else {}))
    os.environ["MLFLOW_TRACKING_URI"] = (folder / "mlflow").as_uri()
    sys.dont_write_bytecode = True


@contextlib.contextmanager
def held_back(folder: Path, note: Callable[[str], None]) -> Iterator[None]:
    """Inside, nothing of the script reaches the outside. note: takes a line for each thing that was held back."""
    finder = _AfterImport(note)
    for name in (*NOTHING, *INSTEAD):
        if name in sys.modules:
            finder.change(sys.modules[name])
    sys.meta_path.insert(0, finder)
    places = tuple(os.path.realpath(os.environ.get(name) or Path.home() / place) for name, place in DOWNLOADS)
    try:
        with written_files.held(folder.resolve(), places, note):
            yield
    finally:
        sys.meta_path.remove(finder)


class _AfterImport(importlib.abc.MetaPathFinder):
    """Finds the modules of NOTHING and INSTEAD as others do, and changes them when they have been imported."""

    def __init__(self, note: Callable[[str], None]):
        self.note = note

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        if fullname not in NOTHING and fullname not in INSTEAD:
            return None
        found = (finder.find_spec(fullname, path, target) for finder in sys.meta_path if finder is not self)
        spec = next((each for each in found if each is not None), None)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def and_change(module: Any) -> None:
                execute(module)
                self.change(module)

            spec.loader.exec_module = and_change
        return spec

    def change(self, module: Any) -> None:
        for name, place in INSTEAD.get(module.__name__, {}).items():
            setattr(module, name, functools.partial(_instead, place, getattr(module, name), self.note))
        for dotted in NOTHING.get(module.__name__, ()):
            *parents, name = dotted.split(".")
            owner = getattr(module, parents[0], None) if parents else module
            if hasattr(owner, name):
                setattr(owner, name, self._nothing(dotted if parents else f"{module.__name__}.{name}"))

    def _nothing(self, name: str) -> Callable:
        def nothing(*arguments: Any, **named: Any) -> Any:
            self.note(f"{name} does nothing here.")
            repository = named.get("repo_id") or next((each for each in arguments if isinstance(each, str)), "")
            return SimpleNamespace(repo_id=repository, url="", commit_url="") if "repo" in name else None

        return nothing


def _instead(place: str, real: Callable, note: Callable[[str], None], *arguments: Any, **named: Any) -> Any:
    """Call a function of this package, as `module:function`. Its module may import torch, as the script has by now."""
    module, _, function = place.partition(":")
    made = importlib.import_module(f"{__package__}.{module}")
    return getattr(made, function)(real, note, *arguments, **named)
