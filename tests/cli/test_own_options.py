"""Options and experiments in a folder of one's own, as docs/own_options.md has them, and Hydra's habits with them."""

from __future__ import annotations

import re
import shutil

import pytest
from conftest import CONF, ROOT, compose, small

from legroom import paths
from legroom.cli import flags, help_text
from legroom.errors import Refusal
from legroom.records import record_file

EXAMPLE = ROOT / "examples" / "own_options"
PAGE = (ROOT / "docs" / "own_options.md").read_text()
TINY = [word for word in small("model=llama_tiny") if not word.startswith("data.samples")]


@pytest.fixture
def menus(monkeypatch):
    """menus(*folders): this process looks through these menus too, as after --config-dir."""
    monkeypatch.setenv("LEGROOM_MENUS", "{}")

    def menus(*folders):
        paths.remember_menus([f"--config-dir={folder}" for folder in folders], folders)

    return menus


def only_run(folder):
    (found,) = folder.glob("outputs/*/*/result.json")
    return record_file.read(found.parent)


def test_the_page_shows_the_files_of_the_example():
    blocks = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    files = [EXAMPLE / "optim" / "sign_sgd.yaml", EXAMPLE / "experiment" / "small.yaml"]
    assert blocks == [file.read_text() for file in files]


def test_an_experiment_of_ones_own_trains_with_an_option_of_ones_own(command, tmp_path):
    ended = command("--config-dir", str(EXAMPLE), "+experiment=small", *TINY)
    assert ended.code == 0, ended.err
    found = only_run(tmp_path)
    assert (found.config["optim"]["name"], found.config["optim"]["momentum"]) == ("slow_muon", 0.98)
    assert found.environment["menus"] == [f"--config-dir={EXAMPLE}"]
    page = next(tmp_path.glob("outputs/*/*/page.html")).read_text()
    assert f"--config-dir={EXAMPLE} " in page, "the command that repeats the run"


@pytest.mark.parametrize(
    "words,said",
    [
        (["--config-dir", "OWN", "+experiment=smal"], "Did you mean small?"),
        (["--config-dir", "OWN", "experiment=smal"], "Did you mean small?"),
        (["--config-dir", "OWN", "experiment=vanilla"], "Type +experiment/guide=vanilla."),
        (["--config-dir", "OWN", "++experiment=small"], "an experiment is added with a plus"),
        (["--config-dir", "OWN", "+experiment=vanilla"], "Type +experiment/guide=vanilla."),
        (["--config-dir", "OWN", "optim=slow_muo"], "Did you mean slow_muon?"),
        (["hydra.searchpath=[OWN]", "optim=slow_muo"], "Did you mean slow_muon?"),
        (["--config-dir", "OWN", "optim=slow_muon", "optim.factory=torch.optim.SGD"], "is not used by optim=slow_muon"),
        (["optim=custom"], "needs the class of its optimizer: optim.factory=package.module.Lion"),
        (["optim=custom", "optim.factory=no_such_package.Lion"], "the package no_such_package is not installed"),
        (["optim=schedule_free", "+optim.args.s=1"], "optim=schedule_free does not take this argument. It has r,"),
        (["--config-dir", "OWN", "optim=slow_muon", "optim.kind=muon"], "cannot be set by itself"),
    ],
)
def test_what_is_wrong_is_refused_with_what_is_near(command, words, said):
    ended = command(*[word.replace("OWN", str(EXAMPLE)) for word in words], "device=cpu", fork_server=None)
    assert ended.code == 2 and said in ended.err, ended.err


@pytest.mark.parametrize(
    "words",
    [
        ["hydra.searchpath=[OWN]", "+experiment=small"],
        ["hydra.searchpath=[file://OWN]", "+experiment=small"],
        ["--config-dir", "OWN", "+experiment=small"],
        ["--config-dir", "OWN", "experiment=small"],
        ["--config-dir=OWN", "+experiment=sub/deep"],
        ["--config-dir=OWN", "+experiment/sub=deep"],
        ["--config-dir=OWN", "experiment/sub=deep"],
    ],
)
def test_an_experiment_is_found_in_every_way_that_hydra_knows(command, tmp_path, words):
    own = shutil.copytree(EXAMPLE, tmp_path / "own")
    (own / "experiment" / "sub").mkdir()
    shutil.copy(own / "experiment" / "small.yaml", own / "experiment" / "sub" / "deep.yaml")
    ended = command("--cfg", "job", *[word.replace("OWN", str(own)) for word in words], fork_server=None)
    assert ended.code == 0 and "name: slow_muon" in ended.out, ended.err


@pytest.mark.slow
def test_a_sweep_over_ones_own_options_names_them_in_its_table(command, tmp_path):
    ended = command("--config-dir", str(EXAMPLE), "-m", "optim=sgd,sign_sgd", *small("recipe=accelerate"))
    assert ended.code == 0, ended.err
    table = next(tmp_path.glob("outputs/*/sweep*/table.md")).read_text()
    assert "sign_sgd" in table and "kind" not in table


def test_help_lists_ones_own_options_and_experiments(menus, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("LEGROOM_MENUS", "{}")
    own = "examples/own_options"
    for words in (["--config-dir", own, "--help", "optim"], ["--help", f"--config-dir={own}", "optim"]):
        assert help_text.say(CONF, words) == 0
        assert "optim=slow_muon   Muon with a longer momentum" in capsys.readouterr().out
    help_text.say(CONF, ["--help", "--config-dir", own])
    first = capsys.readouterr().out
    assert re.search(r"^  optim +adamw, sign_sgd, slow_muon, ", first, re.MULTILINE)
    assert re.search(r"^  \+experiment +small$", first, re.MULTILINE)
    assert help_text.say(CONF, ["--help", "--config-dir", "no/such"]) == 2
    assert "there is no folder no/such" in capsys.readouterr().err


def test_a_command_line_without_its_folders_of_menus(monkeypatch, tmp_path):
    monkeypatch.setenv("LEGROOM_MENUS", "{}")
    typed = ["--config-dir", str(tmp_path), "optim=sgd", "-m", f"hydra.searchpath=[{EXAMPLE}]"]
    assert flags.take_own_menus(typed) == ["optim=sgd", "-m"]
    assert paths.menus() == [CONF, tmp_path, EXAMPLE]
    with pytest.raises(Refusal, match="there is no folder"):
        flags.take_own_menus(["--config-dir", str(tmp_path / "none")])


def test_a_refusal_costs_less_than_two_seconds_of_a_processor(tmp_path):
    """Of a processor: what else runs on this machine does not count."""
    import resource
    import subprocess
    import sys

    words = ["precision=fp16", "device=cpu"]
    subprocess.run([sys.executable, str(ROOT / "train.py"), *words], cwd=tmp_path, capture_output=True)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    ended = subprocess.run([sys.executable, str(ROOT / "train.py"), *words], cwd=tmp_path, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert ended.returncode == 2
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 2


# --- an optimizer of one's own ------------------------------------------------------------------------------


def test_an_optimizer_of_ones_own_trains_alike_in_both_recipes_and_is_estimated(menus, train, predicted):
    menus(EXAMPLE)
    losses = [
        train(f"recipe={recipe}", "optim=sign_sgd", "train.max_steps=3", "train.weight_decay=0.1").record
        for recipe in ("trainer", "accelerate")
    ]
    assert losses[0].training.losses == losses[1].training.losses
    assert losses[0].memory.largest_bytes.get("optimizer", 0) == 0, "it has no state"
    adamw, own = (predicted(*small("device=cpu", each)) for each in ("optim=adamw", "optim=sign_sgd"))
    assert own.memory.peak_tensor_bytes < adamw.memory.peak_tensor_bytes


OWN = """
import torch

class NoOptimizer:
    pass

class Strict(torch.optim.SGD):
    def __init__(self, params, lr, weight_decay):
        super().__init__(params, lr, weight_decay=weight_decay)
"""


@pytest.mark.parametrize(
    "line,said",
    [
        ("factory: absent.py:Strict", "there is no such file"),
        ("factory: no_such_package.Strict", "the package no_such_package is not installed"),
        ("factory: Strict", "needs the class of its optimizer"),
        ("beta1: 0.9", "needs the class of its optimizer"),
    ],
)
def test_a_class_that_is_not_there_is_refused_before_anything_starts(menus, tmp_path, line, said):
    own_option(tmp_path, line)
    menus(tmp_path)
    assert any(said in problem for problem in compose("device=cpu", "optim=mine").problems)


@pytest.mark.parametrize("recipe", ["trainer", "accelerate"])
def test_a_class_typed_on_the_command_line_is_that_class(command, tmp_path, recipe):
    """optim=custom is the optimizer of its class, and its arguments are typed as those of any option are."""
    words = small(f"recipe={recipe}", "train.weight_decay=0.1", "train.max_steps=3", "measure.ledger=false")
    losses = []
    for number, optim in enumerate(
        (
            ["optim=sgd", "optim.momentum=0.5"],
            ["optim=custom", "optim.factory=torch.optim.SGD", "optim.args.momentum=0.5"],
            ["optim=custom", "optim.factory=torch.optim.SGD", "optim.args={momentum: 0.5}"],
        )
    ):
        folder = tmp_path / str(number)
        ended = command(*optim, *words, f"hydra.run.dir={folder}")
        assert ended.code == 0, ended.err
        losses.append(record_file.read(folder).training.losses)
    assert losses[0] == losses[1] == losses[2]
    assert "custom (SGD)" in ended.out + ended.err


def test_a_class_in_a_file_typed_on_the_command_line_is_estimated(predicted):
    factory = f"optim.factory={EXAMPLE / 'sign_sgd.py'}:SignSGD"
    typed = predicted(*small("gpu=l4_24gb", "device=auto", "optim=custom", factory))
    assert typed.memory.largest_bytes.get("optimizer", 0) == 0 and typed.status == "ok"


def test_a_class_is_refused_before_data_and_model_are_read(menus, tmp_path, train):
    """Rows that are not there are not asked for: the class comes first."""
    own_option(tmp_path, "factory: broken.py:Strict")
    menus(tmp_path)
    (tmp_path / "rows.jsonl").write_text("{}\n")
    refused = train("optim=mine", "data=text", f"data.path={tmp_path / 'rows.jsonl'}", status="refused").record
    assert "ModuleNotFoundError" in refused.error.message and "rows.jsonl" not in refused.error.message


def own_option(folder, lines: str) -> None:
    (folder / "optim").mkdir(exist_ok=True)
    (folder / "optim" / "mine.yaml").write_text(f"# mine\nname: mine\nkind: factory\n{lines}\n")
    (folder / "own.py").write_text(OWN)
    (folder / "broken.py").write_text("import no_such_module")


@pytest.mark.parametrize(
    "lines,said",
    [
        ("factory: own.py:NoOptimizer", "is no subclass of torch.optim.Optimizer"),
        ("factory: own.py:Absent", "cannot be imported: AttributeError"),
        ("factory: broken.py:Strict", "cannot be imported: ModuleNotFoundError"),
        ("factory: json.JSONDecoder", "is no subclass of torch.optim.Optimizer"),
        ("factory: own.py:Strict\nargs: {momentun: 0.9}", "does not take the arguments of its option"),
    ],
)
def test_a_class_that_is_no_optimizer_is_refused_in_words(menus, tmp_path, train, lines, said):
    own_option(tmp_path, lines)
    menus(tmp_path)
    refused = train("optim=mine", status="refused").record
    assert said in refused.error.message and refused.error.message.startswith("optim=mine: ")


def test_a_class_of_an_installed_package_is_taken(menus, tmp_path, train):
    own_option(tmp_path, "factory: torch.optim.SGD\nmomentum: 0.9")
    menus(tmp_path)
    mine, ours = train("optim=mine").record, train("optim=sgd").record
    assert mine.training.losses == ours.training.losses


def test_a_factory_beside_another_kind_is_refused(menus, tmp_path):
    own_option(tmp_path, "factory: own.py:Strict")
    text = (tmp_path / "optim" / "mine.yaml").read_text().replace("kind: factory", "kind: muon")
    (tmp_path / "optim" / "mine.yaml").write_text(text)
    menus(tmp_path)
    assert any("factory is for kind: factory" in line for line in compose("device=cpu", "optim=mine").problems)


def test_fit_prints_commands_that_name_the_folder(menus, monkeypatch):
    from legroom.foresight.search import space

    menus(EXAMPLE)
    cfg = compose("recipe=estimate", "gpu=l4_24gb", "optim=slow_muon").cfg
    search = space.SearchSpace(["optim=slow_muon"], cfg, 4)
    assert f"--config-dir={EXAMPLE} optim=slow_muon" in search.command({})
