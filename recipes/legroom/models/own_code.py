"""code=FILE: a person's own model classes, which the file registers with transformers' auto classes.

`AutoConfig.register("mine", MyConfig)` and `AutoModelForCausalLM.register(MyConfig, MyModel)` are how transformers
takes models that it lacks; then a config.json with `"model_type": "mine"` is a model as any other is.
"""

import importlib.util
import sys
from pathlib import Path
from typing import Any

from legroom.config import Config
from legroom.errors import Refusal


def run(cfg: Config) -> None:
    """Runs the file of `code`, once in a process. Raises Refusal for whatever goes wrong in it."""
    if cfg.code is None:
        return
    try:
        load(cfg.code)
    except Exception as error:  # of a person's own file
        raise Refusal(f"code={cfg.code} cannot be run: {type(error).__name__}: {error}") from error


def load(file: str) -> Any:
    """The module of a Python file, run once in this process. Raises what it raises."""
    name = f"legroom_own_{Path(file).stem}"
    module = sys.modules.get(name)
    if module is not None and module.__file__ == file:
        return module
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is no file of Python")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]  # half of it has run
        raise
    return module
