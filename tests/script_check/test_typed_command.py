"""What stands behind `legroom check` and `legroom measure`, as a program."""

import contextlib
import json
import os
import socket

import pytest
from accelerate.commands.launch import launch_command_parser
from torch.distributed.run import get_args_parser

from legroom.cli import check
from legroom.errors import Refusal
from legroom.script_check import command


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bin").mkdir()
    for name in ("torchrun", "torchrun_like", "accelerate", "deepspeed"):
        path = tmp_path / "bin" / name
        path.write_text("#!/usr/bin/env python3\n")
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    (tmp_path / "train.py").write_text("print(1)\n")
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "main.py").write_text("print(1)\n")
    (tmp_path / "run.sh").write_text("python train.py\n")
    (tmp_path / "book.ipynb").write_text("{}")
    (tmp_path / "started").write_text("#!/usr/bin/env python3\nprint(1)\n")
    (tmp_path / "two.yaml").write_text("num_processes: 2\nmixed_precision: bf16\n")
    (tmp_path / "whole").mkdir()
    (tmp_path / "whole" / "__main__.py").write_text("print(1)\n")
    (tmp_path / "plain").write_text("print(1)\n")
    (tmp_path / "shell").write_text("#!/bin/sh\n")
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "list.yaml").write_text("- num_processes\n")
    (tmp_path / "broken.yaml").write_text("num_processes: {\n")
    (tmp_path / "latin.yaml").write_bytes("# für zwei\n".encode("latin-1"))
    with socket.socket(socket.AF_UNIX) as channel:  # that no one may read, root neither
        channel.bind("channel")
    return tmp_path


FILE = "train.py", ["--lr", "1"]


@pytest.mark.parametrize(
    "typed, kind, target, argv, ranks",
    [
        ("train.py --lr 1", "file", *FILE, None),
        ("-- train.py --lr 1", "file", *FILE, None),
        ("python -u -X dev train.py --lr 1", "file", *FILE, None),
        ("python3.11 train.py --lr 1", "file", *FILE, None),
        ("started -x", "file", "started", ["-x"], None),
        ("python -m package.main --lr 1", "module", "package.main", ["--lr", "1"], None),
        ("torchrun --standalone --nproc_per_node=4 train.py --lr 1", "file", *FILE, 4),
        ("torchrun --nnodes 2 --nproc-per-node 4 train.py --lr 1", "file", *FILE, 8),
        ("torchrun --nproc-per-node gpu -m package.main", "module", "package.main", [], None),
        ("python -m torch.distributed.run --nproc_per_node 2 train.py --lr 1", "file", *FILE, 2),
        ("accelerate launch train.py --lr 1", "command", "accelerate", ["launch", "train.py", "--lr", "1"], None),
        (
            "accelerate launch --multi_gpu --num_processes 3 train.py --lr 1",
            "command",
            "accelerate",
            ["accelerate", "launch", "--multi_gpu", "--num_processes", "3", "train.py", "--lr", "1"][1:],
            3,
        ),
        (
            "accelerate launch --config_file two.yaml train.py --lr 1",
            "command",
            "accelerate",
            ["accelerate", "launch", "--config_file", "two.yaml", "train.py", "--lr", "1"][1:],
            2,
        ),
        (
            "accelerate launch --config_file two.yaml --num_processes 4 -m package.main",
            "command",
            "accelerate",
            None,
            4,
        ),
        ("deepspeed --num_gpus 3 train.py", "command", "deepspeed", None, 3),
        ("deepspeed --include localhost:0,1 train.py", "command", "deepspeed", None, 2),
        ("torchrun_like run", "command", "torchrun_like", ["run"], None),
        ("torchrun_like sft --num_processes 2", "command", "torchrun_like", ["sft", "--num_processes", "2"], 2),
        ("uv run train.py --lr 1", "file", *FILE, None),
        ("plain --lr 1", "file", "plain", ["--lr", "1"], None),
        ("whole --lr 1", "file", "whole", ["--lr", "1"], None),
        ("torchrun --nnodes 2:4 --nproc_per_node 2 -- train.py --lr 1", "file", *FILE, 4),
        ("torchrun --nnodes 2 train.py --lr 1", "file", *FILE, 2),
    ],
)
def test_what_is_run(typed, kind, target, argv, ranks):
    found = command.parse(typed.split())
    where = found.target if kind != "file" else os.path.relpath(found.target)
    assert (found.kind, where, found.ranks) == (kind, target, ranks)
    if argv is not None:
        assert found.argv == argv


def test_rank_0_is_told_what_torchrun_tells_it():
    found = command.parse(["A=1", "torchrun", "--nnodes", "2", "--nproc-per-node", "4", "train.py"])
    assert {"A": "1", "RANK": "0", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4"}.items() <= found.environment.items()
    assert found.typed == "A=1 torchrun --nnodes 2 --nproc-per-node 4 train.py"
    assert command.parse(["A=1", "train.py"]).environment == {"A": "1"}


@pytest.mark.parametrize(
    "typed, said",
    [
        ("", "no script is named"),
        ("--", "no script is named"),
        ("missing.py", "no such file"),
        ("missing", "no such command"),
        ("train", "Did you mean train.py"),
        ("run.sh", "not Python"),
        ("book.ipynb", "notebook"),
        ("package", "__main__"),
        ("python", "no script"),
        ("python -c pass", "file"),
        ("python -", "write the code into a file"),
        ("python missing", "missing: there is no such file"),
        ("shell", "shell is not Python"),
        ("empty", "empty is not Python"),
        ("sh", "sh is not Python"),  # a command of the system
        ("channel", "^channel: "),
        ("python -m", "module"),
        ("python -m train.py", "module"),
        ("torchrun --nproc_per_node two train.py", "number"),
        ("torchrun --nproc_per_node 0 train.py", "--nproc_per_node=0: a number was expected"),
        ("torchrun --nproc_per_node", "value"),
        ("torchrun --no-python train.py", "name the script itself"),
        ("torchrun --standalone", "no script"),
        ("accelerate train.py", "accelerate launch"),
        ("accelerate launch --config_file none.yaml train.py", "no such file"),
        ("accelerate launch --config_file list.yaml train.py", "list.yaml: it holds no keys"),
        ("accelerate launch --config_file broken.yaml train.py", "broken.yaml: while parsing .* line 2, column 1"),
        ("accelerate launch --config_file latin.yaml train.py", "latin.yaml: unacceptable character"),
        ("accelerate launch --num_machines 2 train.py", "Type torchrun --nnodes 2"),
        ("accelerate launch --num_processes 128 train.py", "Type torchrun --nproc_per_node 128"),
        ("deepspeed --num_nodes 2 train.py", "Type torchrun"),
    ],
)
def test_what_cannot_run_is_refused_in_words(typed, said):
    with pytest.raises(Refusal, match=said):
        command.parse(typed.split())


@pytest.mark.parametrize(
    "parser, switches",
    [(get_args_parser(), command.TORCHRUN_SWITCHES), (launch_command_parser(), command.ACCELERATE_SWITCHES)],
    ids=["torchrun", "accelerate"],
)
def test_the_launchers_switches_are_known(parser, switches):
    found = {
        option.lstrip("-").replace("_", "-")
        for action in parser._actions
        if action.nargs == 0
        for option in action.option_strings
    }
    assert found == switches


@pytest.mark.parametrize(
    "typed, program", [("--gpu t -m pkg --json 1", "-m pkg --json 1"), ("--gpu t train.py -m 3", "train.py -m 3")]
)
def test_a_module_needs_no_python_in_front_of_it(typed, program):
    parser = check.parser_of("check", None, "")
    parser.add_argument("--gpu")
    assert check.parsed(parser, typed.split()).program == program.split()
    assert command.parse(["-m", "torch", "1"]).argv == ["1"]


@pytest.mark.parametrize(
    "text, size",
    [("24GiB", 24 * 2**30), ("2.5", 5 * 2**29), ("24GB", 24 * 10**9), ("900 MiB", 900 * 2**20), ("1M", 2**20)],
)
def test_a_size_is_read_with_its_unit(text, size):
    assert check.bytes_of(text) == size


def test_a_size_without_a_unit_that_is_known_is_refused(capsys):
    with pytest.raises(SystemExit):
        check.main(["--budget", "24 TB", "train.py"])
    assert "24GiB, 24GB or 900MiB" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--gpu", "t4_16gb,l4_24gb", "--try"], "--try: name one GPU"),
        (["--gpu", "none"], "gpu='none' is not known"),
        (["--gpu", "t4_16gb", "--margin", "2"], "--margin 2"),
        (["--gpu", "t4_16gb", "--budget", "many"], "write a size as 24GiB"),
    ],
)
def test_a_refusal_is_json_where_json_is_asked_for(capsys, options, said):
    with contextlib.suppress(SystemExit):
        check.main([*options, "--json", "--", "train.py"])
    assert said in json.loads(capsys.readouterr().out)["error"]


def test_the_flags_of_the_interpreter_are_kept():
    found = command.parse(["python3.12", "-X", "dev", "-u", "train.py"])
    assert (found.python, found.flags) == ("python3.12", ["-X", "dev", "-u"])
