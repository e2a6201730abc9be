"""Tasks beside classes and the next token: numbers, several labels a row, masked tokens; in both recipes, evaluated and
saved."""

from __future__ import annotations

import json
import math

import pytest
import torch
from conftest import compose
from transformers import AutoConfig, AutoModelForSequenceClassification, pipeline

from legroom.data import dataset, preview
from legroom.records import checkpoint_files

RECIPES = ("trainer", "accelerate")
BOTH = ["model=bert_tiny", "model.dropout=0.1", "accumulation.steps=2", "train.max_steps=3"]


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
    words = [*BOTH, *labelled(tmp_path, labels), f"data.task={task}", "save.final=true"]
    if task == "multi_label":
        words.append("model.classes=3")
    one, other = (train(f"recipe={recipe}", *words) for recipe in RECIPES)
    assert one.record.training.losses == other.record.training.losses
    assert one.record.evaluation.loss == other.record.evaluation.loss
    score = one.record.evaluation.pearson if task == "regression" else one.record.evaluation.f1
    assert -1 <= score <= 1 and one.record.evaluation.accuracy is one.record.evaluation.perplexity is None
    model = AutoModelForSequenceClassification.from_pretrained(one.folder / "model")
    assert model.config.problem_type == problem and model.config.num_labels == outputs
    names = ["a", "b", "c"] if task == "multi_label" else ["LABEL_0"]
    assert list(model.config.id2label.values()) == names


@pytest.mark.parametrize(
    "task,labels,said", [("regression", NUMBERS, "label 0.5:"), ("multi_label", SETS[1:], "label a, c:")]
)
def test_an_adapters_folder_has_the_labels_and_a_preview_names_them(train, tmp_path, task, labels, said):
    words = [
        "model=bert_tiny",
        *labelled(tmp_path, labels),
        f"data.task={task}",
        "data.eval_fraction=0",
    ]
    if task == "multi_label":
        words.append("model.classes=3")
    run = train(*words, "recipe=accelerate", "adapter=lora", "save.final=true")
    config = AutoConfig.from_pretrained(run.folder / "model")
    assert list(config.id2label.values()) == (["a", "b", "c"] if task == "multi_label" else ["LABEL_0"])
    cfg = compose(*words).cfg
    shown = preview.samples(dataset.build_data(cfg, task, 512), 12)
    assert said in shown and ("label 3.5:" if task == "regression" else "label b, c:") in shown


@pytest.mark.parametrize("task", ["regression", "multi_label", "masked_lm"])
def test_an_estimate_has_the_ledgers_peak(train, predicted, task):
    words = ["model=bert_tiny", "data.seq_len=32", "data.samples=8", f"data.task={task}", "batch.per_device=4"]
    counted = train(*words).record.memory.peak_tensor_bytes
    from conftest import small

    assert predicted(*small(*words)).memory.peak_tensor_bytes == pytest.approx(counted, rel=1e-4)


def test_scores_of_known_predictions():
    from legroom.records.record import Evaluation, quality
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
    alike = scored("regression", [[1.0], [1.0]], [2.0, 1.0])
    assert alike.pearson is None and quality(Evaluation(2, 0.5)) == "no score"
    assert scored("classification", [[0.0, 1.0], [1.0, 0.0]], [1, 1]).accuracy == 0.5


def test_an_accuracy_stands_beside_the_share_of_the_most_frequent_label(train, tmp_path):
    """Of the rows to evaluate on, which have other shares than those to train on."""
    from legroom.records.record import quality

    words = [word for word in labelled(tmp_path, ["bad", "good"] * 4) if "eval_fraction" not in word]
    words.append(rows_file(tmp_path, [{"text": "a", "label": each} for each in ("bad", *["good"] * 3)], "e.jsonl"))
    words[-1] = words[-1].replace("data.path", "data.eval_path")
    found = train("model=bert_tiny", *words).record.evaluation
    assert found.most_frequent_share == 0.75 and found.accuracy in (0, 0.25, 0.5, 0.75, 1)
    assert quality(found) == f"accuracy {found.accuracy:.1%} (the most frequent label alone: 75.0%)"


@pytest.mark.parametrize(
    "task,label,said",
    [
        ("regression", "high", "needs a number. Name the right one with data.label_column=."),
        ("regression", True, "needs a number"),
        ("regression", "1,84", "with a decimal point"),
        ("regression", " -1_000 ", "with a decimal point"),
        ("regression", "250,000.5", "with a decimal point"),
        ("multi_label", {"a": 1}, "needs a list of words"),
        ("multi_label", 3, "needs a list of words"),
        ("multi_label", [1.5], "needs a list of words"),
        ("multi_label", [0, 1, 0, 1], "write the numbers of those labels, [1, 3]"),
    ],
)
def test_labels_of_another_kind_are_refused_by_their_place(task, label, said, tmp_path):
    from test_data import refusal

    words = labelled(tmp_path, [NUMBERS[0] if task == "regression" else ["a"], label, label])
    text = refusal("model=bert_tiny", *words, f"data.task={task}", task=task)
    assert "rows.jsonl, line 2: the column label holds" in text and said in text


def test_labels_of_which_all_rows_have_the_same_or_one_are_told(tmp_path):
    from test_data import built, refusal

    words = ["model=bert_tiny", "model.classes=3", "data.task=multi_label"]
    same = labelled(tmp_path, [[0, 1], [1, 0]] * 4)
    assert "all 6 rows to train on have the label 0, 1" in refusal(*words, *same, task="multi_label")
    alone = built(*words, *labelled(tmp_path, ["good, bad", "good", "bad"] * 4), task="multi_label")
    assert "no row has more than one label" in " ".join(alone.warnings)


def test_an_empty_cell_has_no_label(tmp_path):
    from test_data import built

    (tmp_path / "rows.csv").write_text("text,label\nword,a|b\nword,\nword,b\nword\n")
    words = ["data=text", f"data.path={tmp_path / 'rows.csv'}", "data.task=multi_label", "data.eval_fraction=0"]
    data = built("model=bert_tiny", *words, task="multi_label")
    assert [row["labels"].tolist() for row in data.train] == [[1, 1], [0, 0], [0, 1]]
    assert "1 of 4 rows are left out" in " ".join(data.warnings)


@pytest.mark.parametrize("held_out", [[["toxic"], []], [[], []]])
def test_one_label_that_some_rows_lack_is_enough(tmp_path, held_out):
    from test_data import built

    words = [word for word in labelled(tmp_path, [["toxic"], [], ["toxic"], []]) if "eval_fraction" not in word]
    words.append(rows_file(tmp_path, [{"text": "other", "label": each} for each in held_out], "h.jsonl"))
    words[-1] = words[-1].replace("data.path", "data.eval_path")
    data = built("model=bert_tiny", *words, "data.task=multi_label", task="multi_label")
    assert [row["labels"].tolist() for row in data.train] == [[1], [0], [1], [0]] and data.names == ["toxic"]
    assert [row["labels"].tolist() for row in data.eval] == [[float(len(each))] for each in held_out]
    assert not any("|" in warning for warning in data.warnings)


@pytest.mark.parametrize(
    "labels,said", [([250e3, 310e3], "2.8e+05"), ([1e-4, 2e-4], "0.00015"), (NUMBERS, ""), ([10.0, -10.0], "")]
)
def test_numbers_that_a_loss_hardly_suits_are_told_with_their_mean(tmp_path, labels, said):
    from test_data import built

    words = ["model=bert_tiny", *labelled(tmp_path, labels), "data.eval_fraction=0", "data.task=regression"]
    told = [warning for warning in built(*words, task="regression").warnings if "standard deviation" in warning]
    assert bool(told) == bool(said) and said in "".join(told)


def test_numbers_that_fp32_does_not_hold_are_left_out():
    from legroom.data import label_values

    assert [label_values.number(each, "", "") for each in (10**400, 1e39, "1e400", "nan", "-1e38")] == [None] * 4 + [
        -1e38
    ]


# --- masked language modelling ------------------------------------------------------------------------


MASKED = [*BOTH, "data=source", "data.task=masked_lm", "data.samples=12", "train.max_steps=4"]


def test_both_recipes_draw_the_same_masks_and_the_model_opens_again(train):
    runs = [train(f"recipe={recipe}", *MASKED, "save.final=true") for recipe in RECIPES]
    one, other = (run.record for run in runs)
    assert one.training.losses == other.training.losses
    assert one.evaluation.loss == other.evaluation.loss
    assert one.evaluation.perplexity == pytest.approx(math.exp(one.evaluation.loss))
    fill = pipeline("fill-mask", model=str(runs[0].folder / "model"))
    assert len(fill(f"def {fill.tokenizer.mask_token}")) == 5
    assert "pipeline_tag: fill-mask" in (runs[0].folder / "model" / "README.md").read_text()


def test_a_resumed_run_and_two_ranks_draw_the_same_masks(train, again, tmp_path):
    plain = [word for word in MASKED if "dropout" not in word]
    whole = train(*plain, "save.every_steps=2", "save.keep=2")
    checkpoint = whole.folder / "checkpoints" / checkpoint_files.folder_name(2)
    resumed, _ = again(tmp_path, *plain, "recipe=accelerate", f"resume={checkpoint}")
    assert resumed.training.resumed_from_step == 2
    assert resumed.training.losses == whole.record.training.losses
    ranks = train(*plain, "batch.per_device=1", "parallelism=ddp", "parallelism.num_processes=2")
    assert ranks.record.training.losses == pytest.approx(whole.record.training.losses, rel=1e-5)


def masking_of(**more):
    from legroom.data.masking import Masking

    return Masking(**({"mask_id": 999, "vocab": 900, "special": (0, 1), "share": 0.15, "seed": 3} | more))


def masked(masking, ids, epoch=0):
    batch = {"input_ids": ids.clone(), "labels": ids.clone()}
    masking(batch, epoch, list(range(len(ids))))
    return batch["input_ids"], batch["labels"]


def test_masks_are_berts_and_follow_from_seed_epoch_and_row():
    ids = torch.randint(2, 900, (400, 100), generator=torch.Generator().manual_seed(0))
    ids[:, 50] = 0
    seen, labels = masked(masking_of(), ids)
    predicted = labels != -100
    assert (predicted.sum(1) == 15).all() and not predicted[:, 50].any() and not predicted[:, 0].any()
    assert (labels[predicted] == ids[predicted]).all() and (seen[~predicted] == ids[~predicted]).all()
    hidden, same = (seen == 999) & predicted, (seen == ids) & predicted
    assert float(hidden.sum() / predicted.sum()) == pytest.approx(0.8, abs=0.02)
    assert float(same.sum() / predicted.sum()) == pytest.approx(0.1, abs=0.02)
    again = masked(masking_of(), ids[:7])
    assert torch.equal(again[0], seen[:7]) and torch.equal(again[1], labels[:7])
    assert not torch.equal(masked(masking_of(), ids, epoch=1)[1], labels)
    assert not torch.equal(masked(masking_of(seed=4), ids)[1], labels)


def test_a_row_has_something_to_predict_and_padding_is_never_masked():
    ids = torch.tensor([[5, 0, 1, 0, 0, 0]])
    labels = torch.tensor([[5, 0, 1, -100, -100, -100]])
    batch = {"input_ids": ids.clone(), "labels": labels}
    masking_of()(batch, 0, [0])
    assert (batch["labels"] != -100).sum() == 1 and int((batch["labels"] != -100).nonzero()[0, 1]) in (1, 2)


def test_whole_words_are_masked_as_one():
    from transformers import BertTokenizerFast

    from legroom.data import masking

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "play", "##ing", "##s", "a", "the"]
    tokenizer = BertTokenizerFast(vocab={word: number for number, word in enumerate(words)})
    continues, breaks = masking.continuing(tokenizer, len(words))
    assert continues.tolist() == [False] * 6 + [True, True, False, False]
    ids = torch.tensor([[2, *([5, 6, 7, 8, 9, 5, 6] * 8), 3]] * 50)
    found = masking_of(continues=continues, breaks=breaks, special=(0, 2, 3, 4), vocab=10)
    _, labels = masked(found, ids)
    number = torch.cumsum(~torch.from_numpy(continues)[ids], 1)
    for row, word in zip(labels != -100, number):
        assert {bool(row[word == each].all()) for each in word[row]} == {True}
        assert not set(word[row].tolist()) & set(word[~row].tolist())


@pytest.mark.parametrize(
    "words,said",
    [
        (["model=gpt2_tiny", "data.task=masked_lm"], "masked language modelling"),
        (["model=bert_tiny", "data=source", "data.mask_share=0.3"], "data.mask_share=0.3: for data.task=masked_lm"),
        (["model=bert_tiny", "data.task=masked_lm", "adapter=lora"], "adapter=lora is not supported"),
        (["model=bert_tiny", "data=source", "data.task=regression"], "are for language_modelling, masked_lm alone"),
        (["model=bert_tiny", "data=source", "data.task=masked_lm", "eval.generate=1"], "predicts no next token"),
    ],
)
def test_what_cannot_be_masked_is_refused(words, said):
    from conftest import compose, small

    from legroom.errors import Refusal
    from legroom.models import architectures, builder

    cfg, _, problems = compose(*small(*words))
    if not problems:
        with pytest.raises(Refusal) as caught:
            architectures.check(cfg, builder.configuration(cfg), "masked_lm")
        problems = [str(caught.value)]
    assert any(said in problem for problem in problems), problems
