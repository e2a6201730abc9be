"""torch.compile without its measurements: a candidate of a kernel is not measured where nothing runs.

`max-autotune` compiles dozens of candidates for each matrix product, which takes minutes, to take the fastest of them.
Without it the product is cuBLAS's; the tensors are the same. Of its other kernels Inductor compiles several sizes of
blocks in every mode, and measures these: the first is taken.
"""

from __future__ import annotations

import importlib

from legroom_inside import imports, places

MODES = {"max-autotune": "reduce-overhead", "max-autotune-no-cudagraphs": "default"}
TUNING = ("max_autotune", "max_autotune_gemm", "max_autotune_pointwise", "coordinate_descent_tuning")


def without_tuning(settings, say):
    """The arguments of torch.compile without what asks for measurements. say: takes a note."""
    settings = dict(settings)
    tuning = []
    mode = settings.get("mode")
    if mode in MODES:
        settings["mode"] = MODES[mode]
        tuning.append(mode)
    options = dict(settings.get("options") or {})
    for name in TUNING:
        if options.pop(name, False) or options.pop(name.replace("_", "-"), False):
            tuning.append(name)
    if settings.get("options"):
        settings["options"] = options
    config = importlib.import_module("torch._inductor.config")
    for name in TUNING:
        if getattr(config, name, False):
            setattr(config, name, False)
            if name not in tuning:
                tuning.append(name)
    if tuning:
        say(
            f"{places.line()} compiles with {', '.join(tuning)}: no kernel is measured here, and those of the usual "
            "mode are taken. The chosen ones may take more workspace."
        )
    return settings


def uses_graphs(settings):
    """Whether arguments of torch.compile ask for CUDA graphs."""
    options = settings.get("options") or {}
    return settings.get("mode") == "reduce-overhead" or bool(options.get("triton.cudagraphs"))


def take_first_blocks():
    """Let Inductor compile each of its kernels with one size of blocks, where it would measure several."""
    imports.after("torch._inductor.runtime.triton_heuristics", _take_first_blocks)


def _take_first_blocks(heuristics):
    kernel = getattr(heuristics, "CachingAutotuner", None)
    if kernel is None:  # of another version
        return
    build = kernel.__init__

    def built(autotuner, *args, **settings):
        is_of_the_script = getattr(settings.get("heuristic_type"), "name", "") == "USER_AUTOTUNE"
        if not is_of_the_script and settings.get("configs"):
            settings["configs"] = settings["configs"][:1]
        build(autotuner, *args, **settings)

    kernel.__init__ = built
