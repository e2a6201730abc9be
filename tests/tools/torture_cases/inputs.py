"""Hostile inputs: nothing of them is executed, nothing outside the folder is read, nothing blocks; refused in words."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

from legroom.records import checkpoint_files, record_file
from torture_cases.workbench import SMALL, Case, Ended, Workbench, copy, expect, no_traceback

RUN = [*SMALL, "train.max_steps=4", "save.every_steps=2"]
STEP = "checkpoints/step-00000002"
MARKER = "executed"
WORDS = "refused or failed in words; nothing is executed, and nothing waits"
SECONDS = 60  # of a machine that others use, too


class Payload:
    """A pickle that makes a file when it is loaded."""

    def __init__(self, marker: Path):
        self.marker = str(marker)

    def __reduce__(self) -> tuple:
        return open, (self.marker, "w")


def cases(_: int) -> list[Case]:
    """Pickles, code, names, pipes, bombs and YAML."""
    made = [Case(name, WORDS, _checkpoint(harm)) for name, harm in CHECKPOINTS.items()]
    made += [Case(name, WORDS, _command(prepare)) for name, prepare in COMMANDS.items()]
    return made


def _ended_in_words(folder: Path, ended: Ended) -> str:
    expect(not (folder / MARKER).exists(), "the payload was executed")
    no_traceback(ended)
    expect(ended.code in (1, 2), f"exit code {ended.code}: {ended.text[-300:]}")
    lines = [line.strip() for line in ended.text.splitlines() if line.strip()]
    line = next((each for each in lines if "refused: " in each), "") or next(
        (each for each in lines if " in load: " in each or "Refusal" in each), lines[-1] if lines else ""
    )
    return f"exit code {ended.code}: {line.replace(str(folder), '.')[:150]}"


# --- checkpoints of a stranger -------------------------------------------------------------------------


def _checkpoint(harm: Callable[[Path, Path], None]) -> Callable[[Workbench], str]:
    """harm(checkpoint, folder): makes a checkpoint hostile, in a folder of its own; it is then named by resume=."""

    def run(bench: Workbench) -> str:
        def train() -> Path:
            made = bench.new_folder()
            ended = bench.command(made, *RUN, "hydra.run.dir=run")
            expect(ended.code == 0, ended.text)
            return made / "run"

        folder = bench.new_folder()
        checkpoint = copy(bench.once("a run to be harmed", train) / STEP, folder / "their" / STEP)
        harm(checkpoint, folder)
        return _ended_in_words(folder, bench.command(folder, *RUN, f"resume=their/{STEP}", seconds=SECONDS))

    return run


def _seal(checkpoint: Path, **changes: Any) -> None:
    """Make sizes and checksums right again after a change; changes: of the manifest's own values."""
    manifest = checkpoint / checkpoint_files.MANIFEST
    values = json.loads(manifest.read_text())
    for name in values["files"]:
        path = checkpoint / name
        if path.is_file():
            values["files"][name] = [path.stat().st_size, checkpoint_files.crc32(path)]
    values |= changes
    del values["crc32"]
    values["crc32"] = checkpoint_files.crc32_of_values(values)
    manifest.write_text(json.dumps(values))


def _content(name: str, make: Callable[[Path], bytes]) -> Callable[[Path, Path], None]:
    """Another content of a file, sealed. make(folder): the content."""

    def harm(checkpoint: Path, folder: Path) -> None:
        (checkpoint / name).write_bytes(make(folder))
        if name != checkpoint_files.MANIFEST:
            _seal(checkpoint)

    return harm


def _values(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path, Path], None]:
    """Other values of rank-0.json, sealed."""

    def harm(checkpoint: Path, _: Path) -> None:
        path = checkpoint / "rank-0.json"
        values = json.loads(path.read_text())
        change(values)
        path.write_text(json.dumps(values))
        _seal(checkpoint)

    return harm


def _manifest(**changes: Any) -> Callable[[Path, Path], None]:
    return lambda checkpoint, _: _seal(checkpoint, **changes)


def _pipe(name: str) -> Callable[[Path, Path], None]:
    def harm(checkpoint: Path, _: Path) -> None:
        (checkpoint / name).unlink()
        os.mkfifo(checkpoint / name)

    return harm


def _link(checkpoint: Path, folder: Path) -> None:
    """The file itself is the right one, elsewhere."""
    path = checkpoint / "rank-0.weights.safetensors"
    path.rename(folder / "outside")
    path.symlink_to(folder / "outside")


def _integers(checkpoint: Path, _: Path) -> None:
    """The same header with another type of the same size: what was written as a float is read as an integer."""
    path = checkpoint / "rank-0.weights.safetensors"
    path.write_bytes(path.read_bytes().replace(b'"dtype":"F32"', b'"dtype":"I32"'))
    _seal(checkpoint)


def _pickled(folder: Path) -> bytes:
    return pickle.dumps(Payload(folder / MARKER))


def _first_box(values: dict[str, Any]) -> dict[str, Any]:
    return next(iter(values["boxes"].values()))


CHECKPOINTS = {
    "checkpoint: a pickle as weights": _content("rank-0.weights.safetensors", _pickled),
    "checkpoint: a pickle as optimizer states": _content("rank-0.optimizer.safetensors", _pickled),
    "checkpoint: a pickle as rank-0.json": _content("rank-0.json", _pickled),
    "checkpoint: a pickle as manifest": _content(checkpoint_files.MANIFEST, _pickled),
    "checkpoint: a file name with ../": _manifest(files={"../../../secret.json": [1, 1], "rank-0.json": [1, 1]}),
    "checkpoint: an absolute file name": _manifest(files={"/etc/passwd": [1, 1], "rank-0.json": [1, 1]}),
    "checkpoint: tensors outside, named by rank-0.json": _values(lambda v: v.update(files={"../../x.safetensors": []})),
    "checkpoint: weights are a link that leaves the folder": _link,
    "checkpoint: a pipe as manifest": _pipe(checkpoint_files.MANIFEST),
    "checkpoint: a pipe as rank-0.json": _pipe("rank-0.json"),
    "checkpoint: a pipe as weights": _pipe("rank-0.weights.safetensors"),
    "checkpoint: 200,000 brackets": _content("rank-0.json", lambda _: b"[" * 200_000),
    "checkpoint: 10^9 ranks": _manifest(ranks=10**9),
    "checkpoint: 1e30 steps": _manifest(step=1e30),
    "checkpoint: an optimizer after 1e30 steps": _values(lambda v: v["optimizer"]["groups"][0].update(step=1e30)),
    "checkpoint: integer weights": _integers,
    "checkpoint: a tensor of 10^15 numbers": _values(lambda v: _first_box(v).update(shape=[10**15], offset=[0])),
    "checkpoint: parameter names that are lists": _values(
        lambda v: v["optimizer"]["groups"][0].update(parameters=[[]])
    ),
    "checkpoint: a scheduler whose step is a list": _values(lambda v: v["scheduler"].update(last_epoch=[1])),
    "checkpoint: a random state that points outside": _values(lambda v: v["random"]["numpy"].__setitem__(2, 10**6)),
}


# --- commands ------------------------------------------------------------------------------------------


def _command(prepare: Callable[[Path], list[str]]) -> Callable[[Workbench], str]:
    """prepare(folder): makes the input and returns what to type."""

    def run(bench: Workbench) -> str:
        folder = bench.new_folder()
        arguments = prepare(folder)
        return _ended_in_words(folder, bench.command(folder, *arguments, seconds=SECONDS))

    return run


def _code(folder: Path) -> None:
    """A module that makes the marker when it is imported."""
    (folder / "evil.py").write_text(f"open({str(folder.parent / MARKER)!r}, 'w')\nEvil = None\n")


BERT = {
    "architectures": ["BertForSequenceClassification"],
    "model_type": "bert",
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "vocab_size": 512,
    "max_position_embeddings": 64,
}
PRETRAINED = [word for word in SMALL if not word.startswith("model.")] + ["train.max_steps=1"]


TEXT = [word for word in SMALL if not word.startswith("data.")] + ["data=text", "data.seq_len=32", "model=gpt2_tiny"]


def _pickled_weights(folder: Path) -> list[str]:
    (folder / "model").mkdir()
    (folder / "model/config.json").write_text(json.dumps(BERT))
    (folder / "model/pytorch_model.bin").write_bytes(_pickled(folder))
    return [*PRETRAINED, f"model.pretrained={folder / 'model'}"]


def _remote_model(folder: Path) -> list[str]:
    (folder / "model").mkdir()
    _code(folder / "model")
    auto = {"AutoConfig": "evil.Evil", "AutoModelForSequenceClassification": "evil.Evil"}
    (folder / "model/config.json").write_text(json.dumps({"model_type": "evil", "auto_map": auto}))
    (folder / "model/model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    return [*PRETRAINED, f"model.pretrained={folder / 'model'}"]


def _remote_tokenizer(folder: Path) -> list[str]:
    (folder / "tokens").mkdir()
    _code(folder / "tokens")
    values = {"tokenizer_class": "Evil", "auto_map": {"AutoTokenizer": ["evil.Evil", None]}}
    (folder / "tokens/tokenizer_config.json").write_text(json.dumps(values))
    (folder / "text.txt").write_text("some text\n" * 200)
    return [*TEXT, f"data.path={folder / 'text.txt'}", f"data.tokenizer={folder / 'tokens'}"]


def _script_as_data(folder: Path) -> list[str]:
    (folder / "data").mkdir()
    _code(folder / "data")
    (folder / "data/evil.py").rename(folder / "data/data.py")
    return [*TEXT, f"data.path={folder / 'data'}"]


def _yaml(text: str) -> Callable[[Path], list[str]]:
    """An option of somebody else's folder of menus."""

    def prepare(folder: Path) -> list[str]:
        (folder / "menus/optim").mkdir(parents=True)
        (folder / "menus/optim/evil.yaml").write_text(text.format(marker=folder / MARKER))
        return [*SMALL, "optim=evil", "--config-dir", "menus"]

    return prepare


def _pipe_as(name: str) -> Callable[[Path], list[str]]:
    """A run folder in which a pipe has the name of one of our files."""

    def prepare(folder: Path) -> list[str]:
        (folder / "run").mkdir()
        os.mkfifo(folder / "run" / name)
        return [*SMALL, "train.max_steps=1", "hydra.run.dir=run"]

    return prepare


COMMANDS = {
    "model: pickled weights": _pickled_weights,
    "model: code in its folder": _remote_model,
    "tokenizer: code in its folder": _remote_tokenizer,
    "data: a script in its folder": _script_as_data,
    "YAML: a tag that calls a function": _yaml("name: !!python/object/apply:os.mknod ['{marker}']\n"),
    "YAML: a tag that makes an object": _yaml("name: !!python/object/new:os.mknod ['{marker}']\n"),
    "YAML: _target_ in an option": _yaml("name: adamw\n_target_: os.mknod\npath: '{marker}'\n"),
    "command line: _target_": lambda folder: [*SMALL, "+optim._target_=os.mknod", f"+optim.path={folder / MARKER}"],
    "run folder: a pipe as result.json": _pipe_as(record_file.FILE_NAME),
    "run folder: a pipe as steps.jsonl": _pipe_as("steps.jsonl"),
    "run folder: a pipe as log.txt": _pipe_as("log.txt"),
}
