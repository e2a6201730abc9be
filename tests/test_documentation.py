"""The documentation: its links, its navigation, and that the commands which it prints are accepted."""

from __future__ import annotations

import re
import shlex
from itertools import chain
from pathlib import Path

import fit_search
import pytest
from conftest import ROOT, compose, small
from hydra.errors import HydraException

from legroom.cli import flags
from legroom.foresight.search import plan, request, space

DOCS = ROOT / "docs"
GENERATED = ("models.md", "keys.md", "record.md")  # tables that a tool writes; it is named at their beginning
LINE_BY_LINE = DOCS / "guides.md"  # a table to look things up in
PAGES = sorted(page for page in DOCS.glob("*.md") if page.name not in GENERATED and page != LINE_BY_LINE)
WRITTEN = [*PAGES, *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "outputs/README.md"))]
NAVIGATION = (ROOT / "mkdocs.yml").read_text().partition("\nnav:")[2]
GUIDES = re.findall(r": (\w+\.md)", NAVIGATION.partition("- Guides:")[2].partition("\n  - ")[0])
FENCE = re.compile(r"^```\w*\n(.*?)^```", re.MULTILINE | re.DOTALL)
# What a reader has to put something of their own into, or what needs a network or a package that is no extra.
NEEDS_SOMETHING = ("path/to", "talks.jsonl", "corpus.txt", "data=hub", "data=mrpc", "RUN", "hydra/sweeper", "...")


def anchors(page: Path) -> set[str]:
    """The addresses of a page's headings, as GitHub and mkdocs make them."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


def commands(text: str) -> list[str]:
    """The lines in code blocks and in `code` that start train.py or fit.py, without what stands behind a #."""
    lines = chain.from_iterable(block.replace("\\\n", " ").splitlines() for block in FENCE.findall(text))
    found = [*lines, *re.findall(r"`([^`\n]+)`", FENCE.sub("", text))]
    return [line.partition(" #")[0].strip() for line in found if re.match(r"\s*python (train|scripts/fit)\.py ", line)]


def one_job(command: str) -> list[str]:
    """The overrides of a command; of a sweep those of its first job."""
    command = command.replace("gpu=glob(*)", "gpu=l4_24gb")
    overrides = [word for word in shlex.split(command)[2:] if "=" in word and not word.startswith(("hydra", "fit."))]
    if " -m " not in command and "scripts/fit" not in command:
        return overrides
    overrides = [word for word in overrides if not re.search(r"=(glob|range|tag)\(", word) and "objective" not in word]
    return [word if "=[" in word else word.split(",")[0] for word in overrides]


def test_generated_pages_name_their_tool():
    for page in [DOCS / name for name in GENERATED if (DOCS / name).exists()]:
        tool = re.search(r"tests/tools/\w+\.py", page.read_text()[:600])
        assert tool and (ROOT / tool[0]).exists(), page


def test_links_lead_somewhere():
    broken = []
    for page in [*ROOT.glob("*.md"), *ROOT.glob("outputs/*.md"), *DOCS.rglob("*.md")]:
        for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
            path, _, anchor = link.partition("#")
            target = page.parent / path if path else page
            if link.startswith(("http:", "https:", "mailto:")):
                continue
            if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
                broken.append(f"{page.relative_to(ROOT)}: {link}")
    assert not broken


def test_files_that_pages_name_exist():
    """CONTRIBUTING names files that its reader makes, CHANGELOG those of earlier checkouts."""
    found = {
        (page.name, name.rstrip("."))
        for page in [*WRITTEN, *DOCS.glob("reference/*.md")]
        if page.name not in ("CONTRIBUTING.md", "CHANGELOG.md")
        for name in re.findall(
            r"(?<![\w/.])(?:recipes/legroom|tests|scripts|conf|examples)/[\w/]+\.\w+", page.read_text()
        )
    }
    missing = sorted((page, name) for page, name in found if "NAME" not in name and not (ROOT / name).exists())
    assert len(found) > 20 and not missing


def test_every_page_stands_in_the_navigation_once():
    listed = re.findall(r": ([\w/]+\.md)", NAVIGATION)
    assert sorted(listed) == sorted({*listed, *(page.name for page in DOCS.glob("*.md"))})
    assert all((DOCS / page).exists() for page in listed)


@pytest.mark.parametrize("page", GUIDES)
def test_a_guide_begins_with_a_command(page):
    """Within the first screen: before the second heading, and in the first twenty lines."""
    text = (DOCS / page).read_text()
    beginning = "\n".join(text.partition("\n## ")[0].splitlines()[:20])
    assert re.search(r"^(\$ )?(python|make|legroom|accelerate|torchrun|from legroom) ?", beginning, re.MULTILINE)


@pytest.mark.slow
def test_printed_commands_are_accepted(monkeypatch):
    """Each composes and is not refused. Those that need data, a folder or a network of the reader's are left out."""
    pages = [
        LINE_BY_LINE,
        *(page for page in WRITTEN if page.name != "CONTRIBUTING.md"),
    ]  # which adds options of its own
    tried, refused = 0, []
    for command in sorted({command for page in pages for command in commands(page.read_text())}):
        if any(part in command for part in NEEDS_SOMETHING) or command.endswith("="):
            continue
        tried += 1
        monkeypatch.chdir(ROOT)
        monkeypatch.setenv("LEGROOM_MENUS", "{}")
        flags.take_own_menus(shlex.split(command)[2:])
        overrides = one_job(command)
        if "scripts/fit" in command and "recipe=estimate" not in overrides:
            overrides.append("recipe=estimate")
        gpus = re.search(r"fit\.gpus=(\d+)", command)
        if gpus and any(word.startswith("parallelism=") for word in overrides):
            overrides.append(f"parallelism.num_processes={gpus[1]}")
        try:
            problems = compose(*overrides).problems
        except HydraException as error:
            problems = [str(error).splitlines()[0]]
        refused += [f"{command}: {problem}" for problem in problems]
    assert tried > 20 and not refused, "\n".join(refused)


def test_what_the_guides_train_on_is_run(train):
    """Two of the commands, made small: those whose task is the guides' own."""
    lines = commands(LINE_BY_LINE.read_text())
    tasks = [one_job(line) for line in lines if re.search("masked_lm|question_answering", line)]
    assert len(tasks) == 2
    for overrides in tasks:
        assert train(*overrides, "train.max_steps=2").record.training.steps == 2


GUIDES_COMMANDS = sorted(set(commands(LINE_BY_LINE.read_text())))
MADE_SMALL = ["train.max_steps=1", "model.layers=2", "data.samples=144", "measure.warmup_steps=0"]


@pytest.mark.slow
@pytest.mark.parametrize("line", GUIDES_COMMANDS)
def test_each_command_of_the_guides_runs(train, line):
    """With a model of two layers, for one step; of a sweep its first job; of a search the batch alone."""
    words = one_job(line)
    on_gpu = ["device=auto", "model.positions=1024"] if any(word.startswith("gpu=") for word in words) else []
    if "scripts/fit" not in line:
        record = train(*words, *MADE_SMALL, *on_gpu, "launch.oversubscribe=true").record
        assert record.recipe == "estimate" or record.training.steps == 1
        return
    gpus = re.search(r"fit\.gpus=(\d+)", line)
    options = request.Options(1, gpus=gpus and int(gpus[1]), keep=tuple({*space.DIMENSIONS} - {space.BATCH}))
    sizes = [word for word in small() if word.startswith(("model.", "data."))]
    search, problems = plan.plan([*sizes, *words, "model.layers=2", "data.samples=144"], options)
    assert search is not None and not problems, problems
    assert fit_search.searched(search, 1).fits


def test_every_line_of_the_guides_has_a_command_a_page_or_a_no():
    """Rows have two cells. Every experiment has a row, and is refused for the want of a GPU alone."""
    text = LINE_BY_LINE.read_text()
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    rows = [row for row in rows if row[0] not in ("the guides", "---")]
    rows = [row for row in rows if len(row) != 6]  # of a table of figures
    assert len(rows) > 60 and all(len(row) == 2 for row in rows)
    assert not [row for row in rows if not re.search(r"`|\]\(|not here", row[1])]
    experiments = sorted(set(re.findall(r"\+experiment/\w+=\w+\b(?!\()", text)))
    files = {f"+experiment/{path.parent.name}={path.stem}" for path in ROOT.glob("conf/experiment/*/*.yaml")}
    assert {name for name in files if "fp16_batch=" not in name} <= set(experiments) <= files
    cells = re.findall(r"`((?:[a-z_.]+=[^`\s]+ ?)+)`", text)  # overrides without a command
    unknown = [line for cell in cells if "data=" not in cell for line in compose(*cell.split()).problems]
    assert cells and all("needs the package" in line or "GPU" in line for line in unknown), unknown
    refused = {name: problem for name in experiments for problem in compose("device=cpu", name).problems}
    assert len(refused) < 7 and all("needs a GPU" in problem for problem in refused.values()), refused
