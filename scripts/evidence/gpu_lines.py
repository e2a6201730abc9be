"""Which lines of the package that only a GPU reaches are run by the tests under played GPUs.

    python scripts/evidence/gpu_lines.py [--into docs/results] [--keep FILE] [tests ...]

Runs the tests (by default those in tests/gpu_played and the ones beside them that play a GPU) with line coverage, also
in the processes that they start, and writes <into>/gpu_lines.md: how many of these lines ran, and each that did not
with the reason why. Needs the package coverage, and about three minutes on two cores. Exit code 1 where a test fails,
or a line that was not run has no reason.

A line counts as one that only a GPU reaches where its statement, or the condition or the function that it stands in,
names CUDA, NVML or the GPUs of this machine (WORDS), or where the statements before it return without a GPU.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from checkout import ROOT

PACKAGE = ROOT / "recipes" / "legroom"
TESTS = ["tests/gpu_played", "tests/machine/test_nvml.py", "tests/doctor/test_doctor.py"]
WORDS = re.compile(
    r"\bcuda\b|\btorch\.cuda\b|nvml|\bon_gpu\b|\bhost\.gpus\b|\bis_paged\b|\bgpus\(\)|\bhost\.gpu\(|\bfound\.cards\b",
    re.I,
)
# Predictions run on a fake device and never on a GPU; a job's estimate hides it. They have tests of their own.
NOT_ON_A_GPU = (
    "cli/app",
    "foresight/estimate.py",
    "estimator/fake_gpu",
    "estimator/memory",
    "foresight/prediction.py",
    "foresight/programs",
    "foresight/search",
    "estimator/speed",
    "estimator/step_estimate.py",
    "estimator/user_step.py",
    "report",
    "compat/played_private.py",
    "compat/torch_backend_private.py",
)
# "file:function" -> why its lines are not run.
REFUSAL = "says what is missing without a GPU, or refuses: run by tests/options on a CPU"
ON_CPU = "what a CPU does: run by the tests without played GPUs"
REASONS: dict[str, str] = {
    "checkpoint/state.py:_on_device": "CUDA's managed memory, which is not played; state_buffer has a contract test",
    "cli/argv.py:leave_auto_out": "run by tests/cli/test_summary.py",
    "cli/brief.py:_had": "of a record: tests/cli/test_brief.py",
    "cli/calibrate.py:main": "says what is missing without a GPU: tests/foresight/calibration",
    "cli/chat.py:_parser": "the help of an option: run by tests/cli",
    "cli/export.py:_parser": "the help of an option: run by tests/cli",
    "cli/summary.py:evaluation": "of an estimate: tests/foresight/test_evaluation_memory.py",
    "cli/summary.py:lengths": "of an estimate: tests/foresight/test_uneven_lengths.py",
    "cli/summary.py:operations_of": "of an estimate or a CPU: tests/estimator/speed/test_anatomy.py",
    "jobs/failures.py:failure_hint": "by the text of an error: tests/jobs/test_failures.py",
    "machine/nvml.py:visible_gpus": "run by tests/machine/test_nvml.py",
    "machine/worker_environment.py:limit_memory": ON_CPU,
    "measure/device_memory.py:in_use": ON_CPU,
    "estimator/ledger/storage_log.py:record": "run by test_memory_ledger.py; managed memory is not played",
    "measure/memory_breakdown.py:one_more_step": "compiled code, which is not played; a job of scripts/gpu_checks.py",
    "models/quantized.py:loading_arguments": "run by tests/levers/test_qlora.py",
    "levers/attention/rules.py:_flash_problems": REFUSAL,
    "levers/accumulation/rules.py:_resolve_auto": REFUSAL,
    "levers/attention/rules.py:problems": REFUSAL,
    "levers/checkpointing/rules.py:warnings": "run by tests/levers/test_checkpointing.py on a CPU",
    "levers/optim/rules.py:_compiled_step_problems": "of an estimate: tests/levers/test_optim.py",
    "levers/optim/rules.py:warnings": "run by tests/levers/test_optim.py on a CPU",
    "levers/parallelism/rules.py:warnings": "run by tests/levers/test_parallelism.py on a CPU",
    "options/requirements.py:problems": REFUSAL,
    "levers/parallelism/fsdp_rules.py:problems": REFUSAL,
    "options/gpu.py:resolve": REFUSAL,
    "levers/kernels/rules.py:problems": REFUSAL,
    "levers/parallelism/launcher_conflicts.py:problems": REFUSAL,
    "levers/parallelism/rules.py:problems": REFUSAL,
    "options/validate.py:validate": REFUSAL,
    "levers/parallelism/zero_rules.py:problems": REFUSAL,
    "compat/bitsandbytes_private.py:step": "CUDA's managed memory; a job of scripts/gpu_checks.py",
    "compat/torch_private.py:called": "of a step on the fake device: tests/estimator/test_step_estimate.py",
    "compat/torch_private.py:autocast": "of a step on the fake device: tests/estimator/test_step_estimate.py",
    "compat/torch_private.py:scaler": "of a step on the fake device: tests/estimator/test_step_estimate.py",
}
SETTINGS = """
[run]
source = {recipes}
parallel = true
concurrency = multiprocessing,thread
patch = subprocess,_exit,fork
data_file = {folder}/data
"""


def measured(tests: list[str], folder: Path) -> tuple[dict[str, set[int]], bool]:
    """(file -> the lines that were run, whether all tests passed)."""
    settings = folder / "settings.cfg"
    settings.write_text(SETTINGS.format(recipes=PACKAGE, folder=folder))
    coverage = [sys.executable, "-m", "coverage"]
    rc = [f"--rcfile={settings}"]
    pytest = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "", "--timeout=300", "--tb=short", *tests]
    passed = subprocess.run([*coverage, "run", *rc, *pytest], cwd=ROOT).returncode == 0
    subprocess.run([*coverage, "combine", "-q", *rc], cwd=ROOT, check=True)
    subprocess.run([*coverage, "json", "-q", *rc, "-o", folder / "lines.json"], cwd=ROOT, check=True)
    files = json.loads((folder / "lines.json").read_text())["files"]
    found = {}
    for name, facts in files.items():
        path = (ROOT / name).resolve().relative_to(PACKAGE)
        found[str(path)] = set(facts["executed_lines"])
    return found, passed


class GpuLines(ast.NodeVisitor):
    """The statements of a file that only a GPU reaches: line -> the function they stand in."""

    def __init__(self, source: str):
        self.source, self.function = source, "module"
        self.found: dict[int, str] = {}
        tree = ast.parse(source)
        self.block(tree.body, False)

    def names_gpu(self, *nodes: ast.AST) -> bool:
        return any(WORDS.search(ast.get_source_segment(self.source, node) or "") for node in nodes)

    def block(self, statements: list[ast.stmt], inside: bool) -> None:
        for statement in statements:
            self.statement(statement, inside)
            if not isinstance(statement, ast.If):
                continue
            ends = isinstance(statement.body[-1], ast.Return | ast.Raise)
            if ends and not statement.orelse and self.names_gpu(statement.test):
                inside = True  # what follows is for the other case

    def statement(self, statement: ast.stmt, inside: bool) -> None:
        if isinstance(statement, ast.FunctionDef | ast.ClassDef):
            outer, self.function = self.function, statement.name
            self.block(statement.body, False)
            self.function = outer
            return
        if isinstance(statement, ast.Import | ast.ImportFrom):
            return
        blocks = [getattr(statement, name, None) or [] for name in ("body", "orelse", "finalbody")]
        blocks += [handler.body for handler in getattr(statement, "handlers", [])]
        head = [node for node in ast.iter_child_nodes(statement) if isinstance(node, ast.expr | ast.withitem)]
        own = self.names_gpu(*head) if any(blocks) else self.names_gpu(statement)
        docstring = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        if (own or inside) and not docstring:
            self.found[statement.lineno] = self.function
        conditional = own and isinstance(statement, ast.If)
        for inner in blocks:
            self.block(inner, inside or conditional)


def report(executed: dict[str, set[int]]) -> tuple[str, list[str]]:
    """(the page, the lines without a reason)."""
    rows, unexplained, total, ran = [], [], 0, 0
    for path in sorted(PACKAGE.rglob("*.py")):
        name = str(path.relative_to(PACKAGE))
        if name.startswith(NOT_ON_A_GPU):
            continue
        source = path.read_text()
        lines = GpuLines(source).found
        missing = {line: function for line, function in lines.items() if line not in executed.get(name, set())}
        total, ran = total + len(lines), ran + len(lines) - len(missing)
        for line, function in sorted(missing.items()):
            reason = REASONS.get(f"{name}:{function}") or REASONS.get(name)
            text = source.splitlines()[line - 1].strip().replace("|", "\\|")
            rows.append(f"| {name}:{function} | `{text}` | {reason or '**none**'} |")
            if reason is None:
                unexplained.append(f"recipes/legroom/{name}:{line}: {text}")
    page = [
        "# Lines that only a GPU reaches",
        "",
        "Made by `python scripts/evidence/gpu_lines.py` from the tests under played GPUs, without a GPU.",
        "What a played GPU cannot show stands in the first lines of tests/support/played_gpu.py: that a line ran there",
        "means that its names and arguments exist and that what follows works, not that its figures are right.",
        "",
        f"{ran} of {total} such statements in recipes/legroom ran. The others:",
        "",
        "| where | statement | why not |",
        "| --- | --- | --- |",
        *rows,
    ]
    return "\n".join(page) + "\n", unexplained


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("tests", nargs="*", default=TESTS)
    parser.add_argument("--into", type=Path, default=ROOT / "docs/results", help="folder for the page")
    parser.add_argument("--keep", type=Path, help="a file with the lines that were run: read where it exists")
    options = parser.parse_args()
    passed = True
    if options.keep and options.keep.exists():
        executed = {name: set(lines) for name, lines in json.loads(options.keep.read_text()).items()}
    else:
        with tempfile.TemporaryDirectory() as folder:
            executed, passed = measured(options.tests, Path(folder))
        if options.keep:
            options.keep.write_text(json.dumps({name: sorted(lines) for name, lines in executed.items()}))
    page, unexplained = report(executed)
    options.into.mkdir(parents=True, exist_ok=True)
    (options.into / "gpu_lines.md").write_text(page)
    print(page)
    for line in unexplained:
        print(f"no reason: {line}", file=sys.stderr)
    return 0 if passed and not unexplained else 1


if __name__ == "__main__":
    sys.exit(main())
