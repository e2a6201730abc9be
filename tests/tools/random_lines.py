"""Try random command lines, most of them wrong, without starting a job.

python tests/tools/random_lines.py                      3,000 lines, a few minutes on two cores
python tests/tools/random_lines.py --seed 7 --count 500
python tests/tools/random_lines.py --whole 20           20 refused lines also as `python train.py ...`

Some lines name a folder of a person's own options and experiments, and options of it, right or misspelt.
A line may be refused, print something, or would run; not end in a traceback, or be refused late, raw, without way out.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import io
import multiprocessing
import os
import random
import re
import shlex
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from checkout import ROOT

import other_ways

from legroom.cli import entry_point, help_text
from legroom.cli import sweep as sweeps
from legroom.compat.patching import patched
from legroom.config import GROUPS
from legroom.jobs import supervise
from legroom.machine import host
from legroom.options import keys, menus
from legroom.paths import CONF

LIMIT_SECONDS = 2.0  # of a core, for a refusal beyond the start of the interpreter and the imports
WAITING_SECONDS = 10.0  # by the clock, without the time in which other programs had the cores
RAW = ("Traceback", "full_key", "object_type", "Error ", "Exception", "DictConfig", "NoneType", "\nusage:", "<class '")
# What a refusal says to do, or which values there are.
WAY_OUT = (
    r"\b([Tt]ype|Choose|[Ll]eave|Did you mean|Set|Change|[Gg]ive|Name|[Aa]dd|[Uu]se|[Ss]ee|says|installs|must|takes?|"
    r"has|one of|choose from|lists|belongs to|needs?|can only be|expected one argument|is not supported)\b"
)
PLAIN_TEXT = "0 1 3 16 0.5 1e-4 true false null bf16 fp32 linear auto cpu a.txt"
ODD_TEXT = r"""
    '' "" ' " [ ] { } ( ) [1 {a:1 [a,b] {a:1} [[1],[2]] \ \' -1 1e400 nan inf -inf 0x10 1_000 1.5 1e3 None yes TRUE
    99999999999999999999 ${ ${} ${nope} ${train.seed} ${nope:x} ${oc.env:HOME} ${oc.env:NOPE} ${.x} ${oc.decode:1}
    a,b 1,2 , 1, ,1 range(3) glob(*) choice(1,2) interval(0,1) sort(2,1) int(x) f(x a=b ~/x ../x / . * ? # % @ a/b
    C:\x http://x/y?z=1 -- -m $HOME `x` ! | ; & a:b @x !!python
"""
OTHER_FLAGS = """--bf16 --learning_rate=1e-4 --model=bert_base --num_train_epochs --output_dir --do_train -x --- - --=
    --m --hlep --overwrite_output_dir --per_device_train_batch_size=8 --fp16=false"""
HYDRA_FLAGS = """
    --cfg job|--cfg nope|--cfg|-c all|--resolve|--info defaults|-i x|--cfg job -p train|--cfg job -p nope|-cn nope|-r|-m
    |-cd nope|-cp nope|--experimental-rerun nope|--multirun|--multi|--|--config-dir=nope
"""
HYDRA_OVERRIDES = """
    hydra.run.dir=x hydra.run.dir=Müller hydra.run.dir=null hydra.run.dir=[1] hydra.nope=1 hydra=3 ~hydra hydra.mode=x
    hydra/launcher=nope hydra/launcher=joblib hydra/sweeper=optuna hydra.launcher.n_jobs=x hydra.job.num=x
    hydra.sweep.dir=s hydra.sweep.dir=[1] hydra.mode=MULTIRUN hydra.verbose=true hydra/help=3 hydra.job.env_set=3
    hydra.sweeper.params={presicion:'fp32,bf16'} hydra.verbose=[1,{a:2}] hydra.launcher=3 hydra.sweeper=3
    hydra.sweeper.params=3 hydra.verbose=3 hydra.sweeper.max_batch_size=x hydra.searchpath=[nope]
"""
# Keys whose values are of their own kind, and a folder of one's own options.
OWN_VALUES = """
    data.bad_rows=skip data.bad_rows=refuse data.template_arguments={enable_thinking:false} train.on_nan=continue
    data.template_arguments={a:[1,2],b:{c:d}} data.template_arguments={messages:1} precision.base=fp32
    precision.weights=bf16 precision.adapter=bf16 precision.reduction=bf16 launch.preempted_exit_code=75
"""
OWN_MENUS, OWN_OPTIONS = "mine", ("precision", "optim", "adapter", "loss", "kernels", "checkpointing", "data", "model")
OWN_FLAGS = [[f"--config-dir={OWN_MENUS}"], ["--config-dir", OWN_MENUS], ["-cd", OWN_MENUS]]
OWN_FLAGS += [[f"hydra.searchpath=[{OWN_MENUS}]"], [f"hydra.searchpath=[nope,{OWN_MENUS}]"]]
OWN_SHARE = 0.2  # of the lines with options of one's own
EXPERIMENT = "# @package _global_\ndefaults:\n  - override /optim: my_sgd\ntrain:\n  max_steps: 2\n"
PLAIN = PLAIN_TEXT.split()
ODD = [*ODD_TEXT.split(), "", " ", "Müller", "日本", "🙂", "a b", "a\nb", "\t", "\x1b[31m", "\udcff", "x" * 3000]
FLAGS = [*(flag.split() for flag in HYDRA_FLAGS.split("|")), *([flag] for flag in OTHER_FLAGS.split())]


# --- the lines -------------------------------------------------------------------------------------------


def lines(seed: int, count: int) -> list[list[str]]:
    """Command lines, the same for the same seed; a larger count only adds to them."""
    chance = random.Random(seed)
    return [_line(chance) for _ in range(count)]


def _line(chance: random.Random) -> list[str]:
    """One to five arguments: mostly right ones, one or two changed."""
    arguments = [_right(chance) for _ in range(chance.randint(0, 3))]
    for _ in range(chance.choice((0, 1, 1, 1, 2))):
        arguments.insert(chance.randint(0, len(arguments)), _changed(chance))
    if chance.random() < 0.25:
        arguments.insert(chance.randint(0, len(arguments)), chance.choice(("-m", "-m", "--multirun")))
    if chance.random() < OWN_SHARE:
        arguments.insert(chance.randint(0, len(arguments)), _own(chance))
        if chance.random() < 0.85:  # else nobody finds it
            arguments = [*chance.choice(OWN_FLAGS), *arguments]
    if chance.random() < 0.15:
        place = chance.randint(0, len(arguments))
        arguments[place:place] = chance.choice(FLAGS)
    return arguments


def _right(chance: random.Random) -> str:
    """An override that exists, with a value that it may take."""
    if chance.random() < 0.5:
        group = chance.choice(GROUPS)
        return f"{group}={chance.choice(sorted(menus.options(group, [CONF])))}"
    values = [f"{key.name}={key.value}" for key in help_text.keys_of(CONF / "config.yaml")]
    return chance.choice(
        [*values, *OWN_VALUES.split(), "batch.per_device=2", "train.seed=1", "+experiment/guide=vanilla", "device=cpu"]
    )


def _own(chance: random.Random) -> str:
    """A copy of an option or an experiment of one's own, at times misspelt."""
    if chance.random() < 0.2:
        return chance.choice(("+experiment=own", "+experiment=owm", "experiment=own", "+experiment/guide=own"))
    menu = chance.choice(OWN_OPTIONS)
    name = "my_" + chance.choice(sorted(menus.options(menu, [CONF])))
    return f"{menu}={_typo(chance, name) if chance.random() < 0.3 else name}"


def _changed(chance: random.Random) -> str:
    """A wrong override: a right one with a change, or something else altogether."""
    right = _right(chance)
    key, _, value = right.partition("=")
    kind = chance.randrange(12)
    if kind == 0:
        return f"{_typo(chance, key)}={value}"
    if kind == 1:
        return f"{key}={_typo(chance, value)}"
    if kind in (2, 3):
        return f"{key}={chance.choice(ODD)}"
    if kind == 4:
        return f"{key}={chance.choice(PLAIN)}"
    if kind == 5:
        return chance.choice(("~", "+", "++", "~+", " ")) + chance.choice((right, key))
    if kind == 6:
        return f"{chance.choice(list(keys.schema()))}={chance.choice((*ODD, *PLAIN))}"
    if kind == 7:
        return f"{chance.choice(sorted(keys.arguments()))}={chance.choice(PLAIN)}"
    if kind == 8:
        return chance.choice(HYDRA_OVERRIDES.split())
    if kind == 9:
        return f"{key}{chance.choice(('.x', '@x', '/x', '.', '..x', '[0]', '.x.y', ':x', 'ä'))}={value}"
    if kind == 10:
        return chance.choice(
            (key, value, "", "=", f"={value}", f"{key}={value}={value}", f"{key} = {value}", f"{key}:{value}")
        )
    return "".join(chance.choice("abcxyz=.,+~@:/'\"[]{}()$ -_1ä%#\\") for _ in range(chance.randint(1, 12)))


def _typo(chance: random.Random, text: str) -> str:
    """A text with a letter left out, doubled, swapped or changed, or in capitals."""
    if not text:
        return "x"
    place = chance.randrange(len(text))
    before, letter, after = text[:place], text[place], text[place + 1 :]
    changes = (
        before + after,
        before + letter * 2 + after,
        before + after[:1] + letter + after[1:],
        before + "x" + after,
    )
    return chance.choice((*changes, text.upper(), text.replace("_", "-"), text + chance.choice("x'\" ,=")))


# --- what the command makes of them ----------------------------------------------------------------------


class JobStarts(BaseException):
    """Raised in place of starting a job: the line is one that runs. No Exception, which Hydra would catch."""


@dataclass(frozen=True)
class Outcome:
    """What became of a line. kind: refused, runs, prints, or failed; problem: why it failed."""

    argv: list[str]
    kind: str
    text: str
    seconds: float  # of a core
    problem: str = ""
    waited: float = 0.0  # seconds by the clock

    @property
    def slow(self) -> bool:
        """Whether it took longer than a refusal may."""
        return self.seconds > LIMIT_SECONDS or self.waited > WAITING_SECONDS

    @property
    def typed(self) -> str:
        """The line as it is typed in a shell, on one line."""
        return shlex.join(self.argv).encode("unicode_escape").decode()


def check(argv: list[str]) -> Outcome:
    """Run a command line in this process, in the current folder, up to the start of its first job.

    A slow refusal is tried again: the first one of a kind may import a module.
    """
    outcome = _run(argv)
    if outcome.kind == "refused" and outcome.slow:
        outcome = _run(argv)
        if outcome.slow:
            problem = f"refused after {outcome.seconds:.1f} s of a core, {outcome.waited:.1f} s by the clock"
            return dataclasses.replace(outcome, kind="failed", problem=problem)
    return outcome


def _run(argv: list[str]) -> Outcome:
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    kind, problem, code = "prints", "", None
    with _no_jobs(argv), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        start, started, queued = time.monotonic(), time.process_time(), _queued_seconds()
        try:
            code = entry_point.run(CONF)
        except JobStarts:
            kind = "runs"
        except SystemExit as stopped:  # Hydra's own flags
            code = stopped.code
        except BaseException:
            kind, problem = "failed", traceback.format_exc()
        seconds = time.process_time() - started
        waited = time.monotonic() - start - (_queued_seconds() - queued)
    text = "".join(stream.buffer.getvalue().decode("utf-8", "replace") for stream in (out, err))
    if kind == "prints" and code == entry_point.REFUSED:
        kind = "refused"
        raw = [each for each in RAW if each in f"\n{text}"]
        silent = [line for line in text.splitlines() if not line.startswith(("refused: ", "warning: "))]
        stuck = [line for line in text.splitlines() if line.startswith("refused: ") and not re.search(WAY_OUT, line)]
        if raw or silent or stuck or not text:
            kind, problem = "failed", f"not as it should be: {', '.join(raw) or (silent or stuck or ['silent'])[0]}"
    elif kind == "prints" and "Traceback" in text:
        kind, problem = "failed", "a traceback was printed"
    return Outcome(argv, kind, text, seconds, problem, waited)


def _queued_seconds() -> float:
    """How long this thread could have run and other programs had the cores; 0 where the system does not tell."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


@contextlib.contextmanager
def _no_jobs(argv: list[str]) -> Iterator[None]:
    def start(*_, **__):
        raise JobStarts

    environment = dict(os.environ)
    with (
        patched(supervise, run=start),
        patched(sweeps, fork_server=lambda: None),
        patched(sys, argv=["train.py", *argv]),
    ):
        try:
            yield
        finally:
            os.environ.clear()
            os.environ.update(environment)


# --- the command ---------------------------------------------------------------------------


def check_all(argvs: list[list[str]], processes: int = 1) -> Iterator[Outcome]:
    """`check` of every line, in a folder that is removed afterwards. In this process if one is enough."""
    with tempfile.TemporaryDirectory(prefix="legroom-lines-") as folder, contextlib.chdir(folder):
        _write_own_menus(Path(OWN_MENUS))
        if processes == 1:
            yield from map(check, argvs)
            return
        with multiprocessing.get_context("fork").Pool(processes) as pool:
            yield from pool.imap(check, argvs, chunksize=10)


def _write_own_menus(folder: Path) -> None:
    other_ways.write_copies(folder, OWN_OPTIONS)
    (folder / "experiment").mkdir()
    (folder / "experiment" / "own.yaml").write_text(EXPERIMENT)


def check_whole(outcome: Outcome) -> Outcome:
    """A refused line again, as `python train.py ...` in a process of its own."""
    start = time.monotonic()
    command = [sys.executable, str(ROOT / "train.py"), *outcome.argv]
    with tempfile.TemporaryDirectory(prefix="legroom-lines-") as folder:
        _write_own_menus(Path(folder, OWN_MENUS))
        ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace", check=False)
    seconds, problem = time.monotonic() - start, ""
    if ended.returncode != entry_point.REFUSED or "Traceback" in ended.stderr or "refused: " not in ended.stderr:
        problem = f"exit code {ended.returncode}: {ended.stderr[-1500:]}"
    return Outcome(outcome.argv, "failed" if problem else "refused", ended.stderr, seconds, problem)


def main() -> int:
    """The command. Returns its exit code: 1 when a line failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=3000, help="how many lines (default: 3000)")
    parser.add_argument("--seed", type=int, default=0, help="of the lines (default: 0)")
    parser.add_argument("--processes", type=int, default=host.usable_cores(), help="default: one for each core")
    parser.add_argument("--whole", type=int, default=0, metavar="N", help="run N refused lines as whole commands, too")
    parser.add_argument("--show", action="store_true", help="print every line with what was said")
    asked = parser.parse_args()
    print(f"seed {asked.seed}, {asked.count} lines, {asked.processes} processes", flush=True)
    start, outcomes = time.monotonic(), []
    for outcome in check_all(lines(asked.seed, asked.count), asked.processes):
        outcomes.append(outcome)
        if asked.show or outcome.kind == "failed":
            print(f"{outcome.kind}: {outcome.typed}\n{outcome.problem or outcome.text}".rstrip(), flush=True)
    refused = [outcome for outcome in outcomes if outcome.kind == "refused"]
    kinds = Counter(outcome.kind for outcome in outcomes)
    slowest = max(refused, key=lambda outcome: outcome.seconds, default=None)
    print(f"{time.monotonic() - start:.0f} s: " + ", ".join(f"{count} {kind}" for kind, count in kinds.most_common()))
    if slowest is not None:
        print(f"slowest refusal {slowest.seconds:.2f} s: {slowest.typed[:200]}")
    return 1 if kinds["failed"] + _whole_lines(refused[: asked.whole]) else 0


def _whole_lines(refused: list[Outcome]) -> int:
    """Run lines as whole commands and print their times. Returns how many failed."""
    whole = [check_whole(outcome) for outcome in refused]
    failed = [outcome for outcome in whole if outcome.kind == "failed"]
    for outcome in failed:
        print(f"failed as a whole command: {outcome.typed}\n{outcome.problem}")
    if whole:
        seconds = sorted(outcome.seconds for outcome in whole)
        print(f"{len(whole)} whole commands: {seconds[len(whole) // 2]:.2f} s in the middle, {seconds[-1]:.2f} at most")
    return len(failed)


if __name__ == "__main__":
    sys.exit(main())
