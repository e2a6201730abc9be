"""The folders of a sweep's jobs: a key that decides, and a name for a reader."""

from __future__ import annotations

import re

import pytest

from legroom.records import run_folder

KEY = "0123456789ab"


@pytest.mark.parametrize(
    "label, readable",
    [
        (["precision=bf16", "optim=adamw"], "bf16-adamw"),
        (["train.learning_rate=1e-4"], "learning_rate_1e_4"),
        (["compile=true", "save.keep=3"], "compile_true-keep_3"),
        (["+experiment/guide=vanilla"], "guide_vanilla"),
        (["model.pretrained=/home/me/a b/../model"], "pretrained_home_me_a_b_.._model"),
        (["data.template_arguments={a: 'x/y'}"], "template_arguments_a_x_y"),
        (["optim=日本"], "optim"),
        ([], ""),
        (["data.path=" + "x" * 500], "path_" + "x" * 75),
    ],
)
def test_a_jobs_folder_says_what_tells_it_from_the_others(label, readable):
    name = run_folder.name_of_job(KEY, label)
    assert name == (f"{KEY}-{readable}" if readable else KEY)
    assert re.fullmatch(r"[A-Za-z0-9._+-]{1,100}", name), "no shell and no file system takes it for something else"


@pytest.mark.parametrize("name", [KEY, f"{KEY}-adamw", f"{KEY}-of another command"])
def test_the_key_alone_finds_a_job(tmp_path, name):
    """Also of a sweep of an earlier version, and of one that varied something else."""
    (tmp_path / name).mkdir()
    (tmp_path / "0123456789ac-adamw").mkdir()
    assert run_folder.of_job(tmp_path, KEY, ["optim=adamw"]) == tmp_path / name
    assert run_folder.key_in_name(tmp_path / name) == KEY


def test_a_new_job_gets_a_readable_name(tmp_path):
    assert run_folder.of_job(tmp_path, KEY, ["optim=adamw"]) == tmp_path / f"{KEY}-adamw"
