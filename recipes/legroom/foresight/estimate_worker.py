"""One estimate in a process of its own: what the app starts for each question, and may end at any time."""

import traceback
from pathlib import Path
from typing import Any

import legroom.training.preload
from legroom import levers, paths
from legroom.errors import Refusal, UnknownOperation, is_out_of_memory
from legroom.foresight import estimate
from legroom.machine import worker_environment
from legroom.options import compose
from legroom.records import record_file
from legroom.records.messages import Progress
from legroom.report.page import run_page, settings

NO_MEMORY = (
    "the estimate itself ran out of the memory that the app gives it on this machine. This says nothing about the GPU: "
    "ask for shorter rows, or type its command in a terminal, where it may take all memory."
)

legroom.training.preload.import_libraries()
levers.load_rules()


def answer(overrides: list[str], folder: Path, pipe: Any, advise: bool = False) -> None:
    """Estimate a command line, leave its record and page in `folder`, and send what was found.

    pipe: what has `send`, as the end of a pipe. advise: see `estimate.run`.

    Sends {"record", "command"}, or {"refused": why}, or {"failed": what}.
    """
    try:
        pipe.send(_estimated(overrides, folder, advise))
    except (Refusal, UnknownOperation) as error:
        pipe.send({"refused": str(error)})
    except Exception as error:  # whatever a model of someone else raises
        worker_environment.lift_memory_limit()
        if is_out_of_memory(error):
            pipe.send({"failed": NO_MEMORY})
            return
        traceback.print_exc()
        pipe.send({"failed": f"{type(error).__name__}: {str(error).strip()[:500]}"})


def _estimated(overrides: list[str], folder: Path, advise: bool) -> dict[str, Any]:
    cfg, outcome, problems = compose.compose(paths.CONF, *overrides)
    if cfg is None or outcome is None or problems:
        return {"refused": " ".join(problems)}
    folder.mkdir(parents=True, exist_ok=True)
    estimate.run(cfg, outcome, folder, Progress(lambda _: None, outcome), advise)
    record_file.write(outcome, folder)
    run_page.write(outcome, folder)
    shown = run_page.data(outcome, folder)
    return {"record": shown["record"], "verdict": shown["verdict"], "next": shown["next"]} | {
        "command": settings.command(outcome),
        "train": settings.to_train(outcome),
    }
