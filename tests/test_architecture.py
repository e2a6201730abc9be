"""The layout that docs/architecture.md describes, checked on the source files; nothing of `legroom` is imported here.

`pytest tests/test_architecture.py --runxfail` lists what a rule that is marked xfail still finds.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterable
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

# Top to bottom. A module imports from its own package, from packages of a lower layer, and from packages of its own
# layer as long as no circle arises.
LAYERS = [
    {"__main__"},
    {"cli"},
    {"jobs"},
    {"script_check"},
    {"foresight"},
    {"report", "doctor"},
    {"training"},
    {"levers"},
    {"tracking", "measure", "checkpoint", "parallelism", "models", "data"},
    {"options"},
    {"records"},
    {"estimator"},
    {"machine"},
    {"ranks"},
    {"compat"},
    # the schema, and the files at the root of the package; the emulated GPU imports nothing but itself
    {"config", "errors", "invocation", "paths", "suggestions", "units", "version", "yaml_table", "emulated_gpu"},
]
LAYER = {package: depth for depth, packages in enumerate(LAYERS) for package in packages}

# The process that a person starts composes, validates and launches. It imports these packages, and no heavy library.
PARENT = {
    "cli",
    "jobs",
    "script_check",
    "report",
    "doctor",
    "tracking",
    "levers",
    "options",
    "records",
    "machine",
    "ranks",
} | LAYERS[-1]
# Started in a process that has the heavy libraries: a worker, the fork server, a rank, the tracker's own process.
NOT_PARENT = {
    "legroom.script_check.recording",  # imported where a script was followed
    "legroom.script_check.verdict",
    "legroom.jobs.training_run",  # imported by the worker alone
    "legroom.ranks.collectives",
    "legroom.levers.optim.own_class",  # as the next
    "legroom.levers.optim.optimizer",  # imported where a training is built, as every lever's apply.py
}
HEAVY = {
    "numpy",
    "torch",
    "transformers",
    "accelerate",
    "datasets",
    "pandas",
    "matplotlib",
    "deepspeed",
    "bitsandbytes",
    "wandb",
}

# Words of an earlier vocabulary; docs/architecture.md has a glossary of those in use.
PRIVATE_WORDS = re.compile(
    r"\b(nursery|nurseries|tend|tends|tended|bury|buried|foresee|foresees|foreseen|strangers|journal|tape|told|hear|heard"
    r"|settle|settles|settled|sketch|claimed|libraries of then)\b",
    re.IGNORECASE,
)

# Documented names that begin with an underscore.
PUBLIC_UNDERSCORES = {"_exit", "_replace", "_asdict", "_fields", "_field_defaults", "_make"}


# --- reading the source ------------------------------------------------------------------------------


@cache
def source_files(folder: str) -> dict[str, Path]:
    """Dotted module name -> file."""
    found = {}
    start = ROOT / "recipes" if folder == "legroom" else ROOT
    for path in sorted((start / folder).rglob("*.py")):  # rglob follows no link, as the one to conf/
        if "inside" in path.parts:  # put into other people's processes, and no part of the package
            continue
        name = ".".join(path.relative_to(start).with_suffix("").parts)
        found[name.removesuffix(".__init__")] = path
    return found


def checked_files() -> dict[str, Path]:
    """What is held to the rule on private names: the package, the commands, and our own tools."""
    return source_files("legroom") | source_files("scripts") | source_files("tests/tools")


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


@cache
def nodes(path: Path) -> list[ast.AST]:
    return list(ast.walk(tree(path)))


def where(path: Path, node: ast.AST) -> str:
    return f"{path.relative_to(ROOT)}:{node.lineno}"  # type: ignore[attr-defined]


def imported_modules(node: ast.AST) -> list[str]:
    """What one import statement names: modules of legroom as modules, other libraries as written."""
    modules = source_files("legroom")
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        assert not node.level, "imports are absolute"
        whole = [f"{node.module}.{alias.name}" for alias in node.names]
        names = [name if name in modules else str(node.module) for name in whole]
    else:
        return []
    return list(dict.fromkeys(names))


def statements_run_on_import(node: ast.AST):
    """Every statement below `node` that is run when the file is imported."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            for other in child.orelse:
                yield other
                yield from statements_run_on_import(other)
            continue
        yield child
        yield from statements_run_on_import(child)


@cache
def import_graph() -> dict[str, set[str]]:
    """Module of legroom -> modules of legroom that it imports anywhere, also in functions and for type checking."""
    modules = source_files("legroom")
    graph: dict[str, set[str]] = {}
    for name, path in modules.items():
        found = {other for node in nodes(path) for other in imported_modules(node)}
        graph[name] = {other for other in found if other in modules} - {name}
    return graph


def package_of(module: str) -> str:
    """`legroom.cli.help_text` -> `cli`; a file at the root is its own package, and `legroom` itself is ''."""
    return (module.split(".") + [""])[1]


def report(found: Iterable[str]) -> None:
    """Fails with a line for each finding."""
    lines = sorted(set(found))
    if lines:
        pytest.fail("\n".join([f"{len(lines)} found:", *lines]), pytrace=False)


def circle(graph: dict[str, set[str]]) -> str | None:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return " <- ".join(error.args[1])
    return None


# --- imports -----------------------------------------------------------------------------------------


def test_no_import_circle_between_files():
    assert circle(import_graph()) is None


def test_no_import_circle_between_packages():
    packages: dict[str, set[str]] = {}
    for module, imported in import_graph().items():
        others = {package_of(other) for other in imported} - {package_of(module), ""}
        packages.setdefault(package_of(module), set()).update(others)
    assert circle(packages) is None


def test_every_package_has_a_layer():
    """A new package is entered in LAYERS; a new file at the root of the package is thought about twice."""
    assert {package_of(module) for module in source_files("legroom")} - {""} <= LAYER.keys()
    at_root = {path.stem for path in (ROOT / "recipes" / "legroom").glob("*.py")}
    assert at_root - {"__init__"} <= LAYERS[-1] | LAYERS[0]


def test_layers_point_down():
    upward = [
        f"{module} imports {other}"
        for module, imported in import_graph().items()
        for other in sorted(imported)
        if package_of(other) and LAYER[package_of(other)] < LAYER.get(package_of(module), 0)
    ]
    report(upward)


def test_the_estimator_knows_no_recipe_no_record_and_no_hydra():
    """It is the kernel: a step and a GPU are all that it is given."""
    kernel = [name for name in source_files("legroom") if package_of(name) == "estimator"]
    beneath = {"estimator", "machine", "ranks", "compat", "config", "errors", "suggestions", "units", "yaml_table"}
    imported = {
        other for name in kernel for node in nodes(source_files("legroom")[name]) for other in imported_modules(node)
    }
    ours = {other for other in imported if other.startswith("legroom")}
    report(f"estimator imports {other}" for other in ours if package_of(other) not in beneath | {""})
    report(f"estimator imports {other}" for other in imported if other.split(".")[0] in ("hydra", "omegaconf"))


def test_the_parent_imports_no_heavy_library():
    modules = source_files("legroom")
    direct: dict[str, list[str]] = {}
    for name, path in modules.items():
        statements = statements_run_on_import(tree(path))
        direct[name] = [other for statement in statements for other in imported_modules(statement)]
    heavy = []
    for start in modules:
        if package_of(start) not in PARENT or start in NOT_PARENT or start.endswith(".apply"):
            continue
        seen, queue = {start}, [(start, start)]
        for module, chain in queue:  # grows while it is read
            heavy += [f"{chain} > {other}" for other in direct[module] if other.split(".")[0] in HEAVY]
            for other in direct[module]:
                if other in modules and other not in seen:
                    seen.add(other)
                    queue.append((other, f"{chain} > {other}"))
    report(heavy)


def test_the_command_starts_without_a_heavy_library():
    code = f"import sys, legroom.cli.entry_point; print(*sorted({HEAVY!r} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_the_package_imports_nothing_of_its_tests():
    """Our tools and the tests' helpers are found there by name, so an import of one would work in a checkout alone."""
    ours = {"tests", "torture_cases"} | {path.stem for path in (ROOT / "tests").rglob("*.py")}
    started = {name: path for name, path in source_files("scripts").items() if not name.startswith("scripts.evidence")}
    report(
        f"{where(path, node)}: {name}"
        for path in (source_files("legroom") | started).values()
        for node in nodes(path)
        for name in imported_modules(node)
        if name.split(".")[0] in ours
    )


# --- language ----------------------------------------------------------------------------------------


def identifiers(path: Path):
    """(node, name) of everything that the file names."""
    for node in nodes(path):
        for field in ("id", "attr", "arg", "name", "asname"):
            name = getattr(node, field, None)
            if isinstance(name, str) and hasattr(node, "lineno"):
                yield node, name


def comments(path: Path):
    """(line number, text) of every comment."""
    for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def test_no_private_word():
    found = []
    for path in source_files("legroom").values():
        for node, name in identifiers(path):
            if PRIVATE_WORDS.search(name.replace("_", " ")):
                found.append(f"{where(path, node)}: {name}")
        for node in nodes(path):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found += [f"{where(path, node)}: {word}" for word in PRIVATE_WORDS.findall(node.value)]
        if PRIVATE_WORDS.search(path.read_text()):
            for line, comment in comments(path):
                found += [f"{path.relative_to(ROOT)}:{line}: {word}" for word in PRIVATE_WORDS.findall(comment)]
    report(found)


# --- other projects' private names -------------------------------------------------------------------


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name != "_" and name not in PUBLIC_UNDERSCORES


def private_names_defined(path: Path) -> set[str]:
    """Functions, classes, attributes and variables with a leading underscore that the file itself makes."""
    made = set()
    for node in nodes(path):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            made.add(node.name)
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            made.add(node.id if isinstance(node, ast.Name) else node.attr)
    return {name for name in made if is_private(name)}


def private_touches(path: Path):
    """Where the file uses, imports, replaces or looks up by string a private name that it did not make itself."""
    own = private_names_defined(path)
    for node in nodes(path):
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = getattr(node, "module", None) or ""
            names = [f"{module}.{alias.name}".strip(".") for alias in node.names]
            for name in names:
                private = any(is_private(part) for part in name.split("."))
                if private or name.startswith("unittest.mock"):
                    yield f"{where(path, node)}: import {name}"
        elif isinstance(node, ast.Attribute) and is_private(node.attr) and node.attr not in own:
            if ast.unparse(node.value).split(".")[-1] == "aten":
                continue  # torch.ops.aten._x: the name of an operator, with a versioned schema
            yield f"{where(path, node)}: {ast.unparse(node)[-60:]}"
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "setattr", "hasattr", "delattr"):
            name = node.args[1].value if isinstance(node.args[1], ast.Constant) else ""
            if is_private(str(name)) and name not in own:
                yield f"{where(path, node)}: {ast.unparse(node)[:60]}"


def overridden_privates(path: Path):
    """Private methods of a class with a base class of another library that this file never calls: overrides."""
    froms = [node for node in nodes(path) if isinstance(node, ast.ImportFrom)]
    imports = [node for node in froms if not str(node.module).startswith("legroom")]
    imported = {alias.asname or alias.name for node in imports for alias in node.names}
    used = {node.attr for node in nodes(path) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)}
    for node in nodes(path):
        if isinstance(node, ast.ClassDef) and any(ast.unparse(base).split(".")[0] in imported for base in node.bases):
            for method in node.body:
                if isinstance(method, ast.FunctionDef) and is_private(method.name) and method.name not in used:
                    yield f"{where(path, method)}: {node.name}.{method.name}"


def test_private_names_of_other_projects_stand_in_compat():
    """Also private names of our own, read from another file: those lose the underscore."""
    found = []
    for name, path in checked_files().items():
        if not name.startswith("legroom.compat") and path.name != "library_patches.py":
            found += [*private_touches(path), *overridden_privates(path)]
    report(found)


def test_every_compat_module_has_a_contract_test():
    compat = ROOT / "recipes" / "legroom" / "compat"
    tests = {path.stem for path in (ROOT / "tests" / "compat").glob("test_*.py")}
    modules = {path.stem for path in compat.glob("*.py")} - {"__init__", "patching"}  # patching: no library's
    missing = sorted(name for name in modules if not tests & {f"test_{name}", f"test_{name.removesuffix('_private')}"})
    assert compat.is_dir() and modules and not missing


def test_no_two_test_files_have_one_name():
    """pytest imports them by it, and collects nothing where two are asked for."""
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert sorted(set(names)) == sorted(names)


# Private names of the package that tests still touch; the list only becomes shorter. A test asks through what the
# package offers. What cannot be reached so is offered, or is not tested alone.
TOUCHED = {
    "test_advice.py: _ask",
    "test_advice.py: _search",
    "test_advice.py: _words",
    "test_app.py: _end_with_app",
    "test_app.py: _estimated",
    "test_app.py: _failed",
    "test_app.py: _is_cached",
    "test_chat_command.py: _with_adapter",
    "test_checkpointing.py: _to_host",
    "test_contributing.py: _REGISTRY",
    "test_estimating_machine.py: _find_one",
    "test_evaluation_memory.py: _ask",
    "test_fork_server.py: _errors",
    "test_longest_rows.py: _estimate",
    "test_program_command.py: _parser",
    "test_program_process.py: _private_bytes",
    "test_saved.py: _AfterImport",
    "test_step_estimate.py: _trace",
}


def test_tests_touch_no_private_name_of_the_package():
    ours = {
        name
        for module, path in source_files("legroom").items()
        if not module.startswith("legroom.compat")
        for name in private_names_defined(path)
    }
    touched = set()
    for name, path in source_files("tests").items():
        if name.startswith(("tests.tools", "tests.compat")):  # contract tests
            continue
        own = private_names_defined(path)
        for node in nodes(path):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("legroom"):
                found = [alias.name for alias in node.names if is_private(alias.name)]
            elif isinstance(node, ast.Attribute) and is_private(node.attr):
                found = [node.attr] if not ast.unparse(node.value).endswith("aten") else []
            elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("setattr"):
                found = [each.value for each in node.args[:2] if isinstance(each, ast.Constant)]
                found = [each.rpartition(".")[2] for each in found if is_private(str(each).rpartition(".")[2])]
            else:
                continue
            touched |= {f"{path.name}: {each}" for each in found if each in ours and each not in own}
    report(touched - TOUCHED)
