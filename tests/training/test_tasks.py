"""Tasks beside classes and the next token: numbers and several labels a row, in both recipes, evaluated and saved."""

from __future__ import annotations

import json

import pytest
import torch
from transformers import AutoModelForSequenceClassification

RECIPES = ("trainer", "accelerate")
BOTH = [
    "model=bert_tiny",
    "model.dropout=0.1",
    "accumulation.steps=2",
    "data.pad_to_multiple_of=1",
    "train.max_steps=3",
]


def rows_file(folder, rows, name="rows.jsonl"):
    path = folder / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return f"data.path={path}"


def labelled(folder, labels, **kind):
    rows = [{"text": "word " * (1 + n % 5), "label": label} for n, label in enumerate(labels)]
    return ["data=text", rows_file(folder, rows, **kind), "data.eval_fraction=0.25", "data.samples=null"]


NUMBERS = [0.5, 3, 1.25, 4.75, 2.5, 0, 1, 3.5, 2.25, 4, 0.75, 1.5]
SETS = [["b"], ["a", "c"], [], ["a"], ["c", "b"], ["a", "b", "c"], ["c"], ["b"], ["a", "b"], ["c"], ["a"], ["b", "c"]]


@pytest.mark.parametrize(
    "task,labels,outputs,problem",
    [("regression", NUMBERS, 1, "regression"), ("multi_label", SETS, 3, "multi_label_classification")],
)
def test_both_recipes_train_the_same_and_save_what_opens_again(train, tmp_path, task, labels, outputs, problem):
    words = [*BOTH, *labelled(tmp_path, labels), f"data.task={task}", "model.classes=3", "save.final=true"]
    one, other = (train(f"recipe={recipe}", *words) for recipe in RECIPES)
    assert one.record.training.losses == other.record.training.losses
    assert one.record.evaluation.loss == other.record.evaluation.loss
    score = one.record.evaluation.pearson if task == "regression" else one.record.evaluation.f1
    assert -1 <= score <= 1 and one.record.evaluation.accuracy is one.record.evaluation.perplexity is None
    model = AutoModelForSequenceClassification.from_pretrained(one.folder / "model")
    assert model.config.problem_type == problem and model.config.num_labels == outputs
    names = ["a", "b", "c"] if task == "multi_label" else ["LABEL_0"]
    assert list(model.config.id2label.values()) == names


@pytest.mark.parametrize("task", ["regression", "multi_label"])
def test_an_estimate_has_the_ledgers_peak(train, predicted, task):
    words = ["model=bert_tiny", "data.seq_len=32", "data.samples=8", f"data.task={task}", "batch.per_device=4"]
    counted = train(*words).record.memory.peak_tensor_bytes
    from conftest import small

    assert predicted(*small(*words)).memory.peak_tensor_bytes == pytest.approx(counted, rel=1e-4)


def test_scores_of_known_predictions():
    from legroom.records.record import Evaluation
    from legroom.training import scores

    def scored(task, logits, labels):
        found = Evaluation(samples=len(labels), loss=0.0)
        scores.enter(
            found, task, [float(each) for each in scores.sums(task, torch.tensor(logits), torch.tensor(labels))]
        )
        return found

    found = scored("multi_label", [[2.0, -1.0], [3.0, 1.0], [-1.0, -2.0]], [[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    assert found.f1 == pytest.approx(2 * 2 / (3 + 3)) and found.exact_match == pytest.approx(1 / 3)
    found = scored("regression", [[1.0], [2.0], [4.0]], [2.0, 1.0, 5.0])
    expected = torch.corrcoef(torch.tensor([[1.0, 2, 4], [2, 1, 5]]))[0, 1]
    assert found.pearson == pytest.approx(float(expected), abs=1e-6)
    assert scored("regression", [[1.0], [1.0]], [2.0, 1.0]).pearson is None
    assert scored("classification", [[0.0, 1.0], [1.0, 0.0]], [1, 1]).accuracy == 0.5


@pytest.mark.parametrize(
    "task,label,said",
    [
        ("regression", "high", "needs a number. Name the right one with data.label_column=."),
        ("regression", True, "needs a number"),
        ("multi_label", {"a": 1}, "needs a list of words"),
        ("multi_label", 3, "needs a list of words"),
        ("multi_label", [1.5], "needs a list of words"),
    ],
)
def test_labels_of_another_kind_are_refused_by_their_place(task, label, said, tmp_path):
    from test_data import refusal

    words = labelled(tmp_path, [NUMBERS[0] if task == "regression" else ["a"], label, label])
    text = refusal("model=bert_tiny", *words, f"data.task={task}", task=task)
    assert "rows.jsonl, line 2: the column label holds" in text and said in text
