"""What Legroom adds to a training, measured in one run with the two sides alternating.

    python tests/tools/bench_step.py            about two minutes on two cores
    python tests/tools/bench_step.py --quick    fewer steps, a noisier answer

Three comparisons, each side taking turns step by step (or run by run) in the same minutes:
the raw loop against a bare PyTorch loop of the same maths, the Trainer recipe against a plain
Trainer, and `train.py` from the shell to its end against a plain script. Exit code 1 when a bound
is broken: 1 % of a step of some 100 ms, 1 ms of a short step, 1.15 times the whole run.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path
from typing import Any

from checkout import ROOT

SHORT = dict(layers=1, width=32, heads=2, feed_forward=64, vocab=512, seq_len=16)
LONG = dict(layers=2, width=128, heads=2, feed_forward=512, vocab=30522, seq_len=512)
LONG_STEP_SHARE, SHORT_STEP_SECONDS, WHOLE_RUN_RATIO = 0.01, 0.001, 1.15
# One heap that both sides share and that gives nothing back to the system. With glibc's defaults each thread has a
# heap of its own, large tensors are mapped anew at every step, and a step's time differs by up to 9 % between two
# sides that run the same code.
ONE_HEAP = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": str(2**25), "MALLOC_TRIM_THRESHOLD_": str(2**33)}
SKIP = 5  # first steps of each side, which warm caches up


class Turns:
    """Lets two trainings in two threads take one step each in turn, and keeps each step's seconds."""

    def __init__(self, sides: int = 2):
        self.locks = [threading.Semaphore(0) for _ in range(sides)]
        self.seconds: list[list[float]] = [[] for _ in range(sides)]
        self.began = [0.0] * sides

    def wait(self, side: int) -> None:
        self.locks[side].acquire()
        self.began[side] = time.perf_counter()

    def done(self, side: int) -> None:
        """A step of this side is over: note it, and let the other have its turn."""
        self.seconds[side].append(time.perf_counter() - self.began[side])
        self.locks[1 - side].release()
        self.wait(side)

    def race(self, *sides) -> list[list[float]]:
        """Run the sides (functions of nothing) against each other. Returns their steps' seconds."""

        def run(side):
            self.wait(side)
            try:
                sides[side]()
            except BaseException:  # the other side would wait for its turn for ever
                traceback.print_exc()
                os._exit(1)
            self.locks[1 - side].release()  # no more turns needed here

        threads = [threading.Thread(target=run, args=(side,), daemon=True) for side in range(len(sides))]
        for thread in threads:
            thread.start()
        self.locks[0].release()
        for thread in threads:
            thread.join()
        return self.seconds


def compose_job(recipe: str, steps: int, sizes: dict):
    """The configuration of a job on the CPU, and its record."""
    from legroom.options import compose

    overrides = [f"{'data' if key == 'seq_len' else 'model'}.{key}={value}" for key, value in sizes.items()]
    return compose.compose_valid(
        ROOT / "conf",
        f"recipe={recipe}",
        f"train.max_steps={steps}",
        "train.schedule=constant",
        "device=cpu",
        *overrides,
    )


def ours(recipe: str, steps: int, sizes: dict, folder: str, turns: Turns, side: int):
    """A training with the recipe as the worker runs it: step log, steps.jsonl and all."""
    from legroom.checkpoint.saver import Saver
    from legroom.checkpoint.stop_request import StopRequest
    from legroom.measure.step_log import StepLog
    from legroom.records.messages import Progress
    from legroom.training import setup

    cfg, outcome = compose_job(recipe, steps, sizes)

    class InTurn(StepLog):
        def step(self, *figures, **more):
            super().step(*figures, **more)
            turns.done(side)

    loop = setup.build(cfg, folder).loop
    step_log = InTurn("cpu", cfg.measure.warmup_steps, cfg.train.log_seconds, lambda *a, **b: None, Path(folder))
    saver: Any = Saver(cfg, step_log, Path(folder), Progress(lambda message: None, outcome), StopRequest(), None, {})
    return lambda: loop.train(step_log, saver)


def bare_loop(steps: int, sizes: dict, folder: str, turns: Turns, side: int):
    """The same maths with PyTorch alone."""
    import torch

    from legroom.training import setup

    ingredients = setup.prepare(compose_job("accelerate", steps, sizes)[0], folder)
    args, rows, network = ingredients.args, ingredients.data, ingredients.build_model()

    def run():
        network.train()
        weights = list(network.parameters())
        optimizer = torch.optim.AdamW(weights, lr=args.learning_rate, weight_decay=0.0)
        schedule = torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0)
        loader = torch.utils.data.DataLoader(rows.train, args.per_device_train_batch_size, shuffle=True)
        done, losses = 0, []
        while done < steps:
            for batch in loader:
                loss = network(**batch).loss
                loss.backward()
                torch.nn.utils.clip_grad_norm_(weights, args.max_grad_norm)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
                losses.append(loss.detach())
                done += 1
                turns.done(side)
                if done == steps:
                    return

    return run


def plain_trainer(steps: int, sizes: dict, folder: str, turns: Turns, side: int):
    """A Trainer as a script would use it, that logs every ten steps."""
    from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments

    from legroom.training import setup

    ingredients = setup.prepare(compose_job("trainer", steps, sizes)[0], folder)
    args, rows, network = ingredients.args, ingredients.data, ingredients.build_model()

    class InTurn(TrainerCallback):
        def on_step_end(self, *_, **__):
            turns.done(side)

    plain = TrainingArguments(
        folder,
        per_device_train_batch_size=args.per_device_train_batch_size,
        max_steps=steps,
        learning_rate=args.learning_rate,
        lr_scheduler_type="constant",
        report_to=[],
        save_strategy="no",
        logging_steps=10,
        disable_tqdm=True,
        use_cpu=True,
        optim="adamw_torch",
    )  # its own default is the fused one: other maths
    trainer = Trainer(network, plain, train_dataset=rows.train, callbacks=[InTurn()])
    trainer.remove_callback(PrinterCallback)
    return trainer.train


def compare_steps(name: str, recipe: str, other, steps: int, sizes: dict) -> bool:
    """Race a recipe against its plain counterpart; print and judge what it adds to a step."""
    with tempfile.TemporaryDirectory() as a, tempfile.TemporaryDirectory() as b:
        turns = Turns()
        theirs = other(steps, sizes, b, turns, 1)
        mine = ours(recipe, steps, sizes, a, turns, 0)  # last: new TrainingArguments reset Accelerate's shared state
        left, right = turns.race(mine, theirs)
    pairs = list(zip(left, right))[SKIP:]
    added = statistics.median(
        ours - bare for ours, bare in pairs
    )  # of neighbours in time: what slows the machine slows both
    base = statistics.median(bare for _, bare in pairs)
    ratio = statistics.median(ours for ours, _ in pairs) / base
    ok = added < (LONG_STEP_SHARE * base if sizes is LONG else SHORT_STEP_SECONDS)
    bound = f"{LONG_STEP_SHARE:.0%} of a step" if sizes is LONG else f"{SHORT_STEP_SECONDS * 1000:g} ms"
    print(
        f"{name:<44}{base * 1000:>9.2f} ms{added * 1000:>+9.3f} ms{added / base:>+8.2%}   ratio of medians {ratio:.3f}"
        f"   {len(pairs)} pairs   under {bound}: {'yes' if ok else 'NO'}",
        flush=True,
    )
    return ok


def compare_runs(steps: int, repeats: int) -> bool:
    """`train.py` from the shell to its end against a plain script, in turn."""
    usual = {name: value for name, value in os.environ.items() if name not in ONE_HEAP}

    def seconds(*command):
        began = time.perf_counter()
        subprocess.run(
            [sys.executable, *map(str, command)],
            check=True,
            cwd=ROOT,
            env=usual,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        return time.perf_counter() - began

    pairs = []
    with tempfile.TemporaryDirectory() as folder:
        for index in range(repeats + 1):
            pairs.append(
                (
                    seconds(
                        ROOT / "train.py",
                        f"train.max_steps={steps}",
                        "measure.ledger=false",
                        "device=cpu",
                        f"hydra.run.dir={folder}/{index}",
                    ),
                    seconds(ROOT / "tests/tools/plain_trainer.py", steps),
                )
            )
    mine, plain = (statistics.median(side) for side in zip(*pairs[1:]))  # the first pair fills the disk's cache
    ok = mine / plain < WHOLE_RUN_RATIO
    print(
        f"{'train.py against a plain script, whole run':<44}{plain:>9.2f} s {mine:>9.2f} s   ratio of medians "
        f"{mine / plain:.3f}   {repeats} pairs of {steps} steps   under {WHOLE_RUN_RATIO}: {'yes' if ok else 'NO'}",
        flush=True,
    )
    return ok


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer steps, a noisier answer")
    quick = parser.parse_args().quick
    if sys.platform == "linux" and not ONE_HEAP.items() <= os.environ.items():  # glibc reads them when a process starts
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | ONE_HEAP)
    import torch

    torch.set_num_threads(1)  # two trainings in one process: idle worker threads of one would disturb the other
    print(f"{'':<44}{'plain':>12}{'added':>12}{'':>8}")
    results = []
    for sizes, steps in ((SHORT, 200 if quick else 600), (LONG, 25 if quick else 80)):
        label = "short step" if sizes is SHORT else "long step"
        results.append(compare_steps(f"raw loop against bare PyTorch, {label}", "accelerate", bare_loop, steps, sizes))
        results.append(
            compare_steps(f"Trainer recipe against plain Trainer, {label}", "trainer", plain_trainer, steps, sizes)
        )
    results.append(compare_runs(steps=20, repeats=2 if quick else 3))
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
