"""tests/tools/same_results.py: what counts as a difference between the results of two checkouts."""

from __future__ import annotations

import copy
import json

import pytest
import same_results

CONFIG = {"train": {"seed": 0}, "measure": {"repeat": 0}, "tracker": {"project": "legroom"}, "resume": None}
RECORD = {"status": "ok", "recipe": "trainer", "overrides": ["train.seed=0"], "config": CONFIG, "config_key": "abc"}
RECORD |= {"memory": {"peak_tensor_bytes": 7}, "speed": {"step_seconds_median": 0.5}, "steps": [{"loss": 1.5}]}


def compared(change) -> tuple[list[str], int]:
    """What is found where a change is made to the new record."""
    new = copy.deepcopy(RECORD)
    change(new)
    return same_results.compare({"exit_code": 0, "records": [RECORD]}, {"exit_code": 0, "records": [new]})


def test_a_record_is_the_same_as_itself_whatever_its_times_are():
    assert compared(lambda record: record["speed"].update(step_seconds_median=0.7)) == ([], 0)


@pytest.mark.parametrize(
    "change,said",
    [
        (lambda record: record["memory"].update(peak_tensor_bytes=8), "peak_tensor_bytes: 7 -> 8"),
        (lambda record: record.update(steps=[{"loss": 1.25}]), "loss: 1.5 -> 1.25"),
        (lambda record: record["config"]["train"].update(seed=1), "config.train.seed: 0 -> 1"),
        (lambda record: record.update(config_key="def"), "config_key: 'abc' -> 'def'"),
        (lambda record: record["config"].pop("resume"), "config.resume: None -> '(missing)'"),
    ],
)
def test_a_difference_is_named(change, said):
    ((line,), more) = compared(change)
    assert said in line and not more


def test_with_a_new_key_of_the_configuration_its_hash_is_not_compared():
    assert compared(lambda record: (record["config"]["train"].update(new=1), record.update(config_key="def"))) == (
        [],
        1,
    )


def test_folders_do_not_differ(tmp_path):
    for name in ("old", "new"):
        folder = tmp_path / name
        folder.mkdir()
        config = CONFIG | {"resume": str(folder / "22")}
        (folder / "result.json").write_text(
            json.dumps(RECORD | {"config": config, "overrides": [f"resume={folder}/22"]})
        )
        (folder / "steps.jsonl").write_text('{"loss": 1.5}\n')
    old, new = (
        {"exit_code": 0, "records": [same_results.read(tmp_path / name / "result.json", tmp_path / name)]}
        for name in ("old", "new")
    )
    assert same_results.compare(old, new) == ([], 0)
