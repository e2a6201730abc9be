"""data.task=question_answering: spans in SQuAD's form, both recipes, windows over contexts, F1 and exact match."""

from __future__ import annotations

import json

import numpy
import pytest
import torch
from conftest import compose, small
from transformers import AutoModelForQuestionAnswering, BertConfig

from legroom.data import questions
from legroom.errors import Refusal
from legroom.options import task
from legroom.training import scores

CONTEXT = "The tower is 324 metres tall, about as tall as a building of 81 storeys. Its base is square."
ASKED = [
    ("How tall is the tower?", "324 metres"),
    ("What is its base?", "square"),
    ("How many storeys?", "81"),
    ("What is tall?", "The tower"),
]


def row(question, text, context=CONTEXT):
    return {"question": question, "context": context, "answers": {"text": [text], "answer_start": [context.find(text)]}}


def file_of(folder, rows, name="squad.jsonl"):
    path = folder / name
    path.write_text("".join(json.dumps(each) + "\n" for each in rows))
    return ["data=text", f"data.path={path}", "data.task=question_answering", "data.samples=null"]


def words(folder, rows=None, **more):
    rows = rows or [row(*ASKED[n % 4]) for n in range(8)]
    return ["model=bert_tiny", *file_of(folder, rows, **more), "data.seq_len=64", "data.eval_fraction=0.25"]


def built(*overrides):
    from legroom.data import dataset

    cfg, _, problems = compose(*small("batch.per_device=1", *overrides))  # a batch is no larger than the data
    assert not problems, problems
    return dataset.build_data(cfg, "question_answering", 512)


def test_both_recipes_train_the_same_and_the_model_opens_again(train, tmp_path):
    told = [*words(tmp_path), "model.dropout=0.1", "accumulation.steps=2", "save.final=true"]
    runs = [train(f"recipe={recipe}", *told) for recipe in ("trainer", "accelerate")]
    one, other = (run.record for run in runs)
    assert one.training.losses == other.training.losses
    assert one.evaluation.loss == other.evaluation.loss
    assert (one.evaluation.f1, one.evaluation.exact_match) == (other.evaluation.f1, other.evaluation.exact_match)
    assert 0 <= one.evaluation.exact_match <= one.evaluation.f1 <= 1 and one.evaluation.perplexity is None
    model = AutoModelForQuestionAnswering.from_pretrained(runs[0].folder / "model")
    assert model.qa_outputs.out_features == 2
    assert not any("not compared" in warning for warning in one.warnings)


def test_an_estimate_has_the_ledgers_peak(train, predicted, tmp_path):
    told = [*words(tmp_path), "batch.per_device=4", "eval.enabled=false"]
    counted = train(*told).record.memory.peak_tensor_bytes
    assert predicted(*small(*told)).memory.peak_tensor_bytes == pytest.approx(counted, rel=1e-4)


def test_every_window_is_labelled_with_its_own_part_of_the_answer(tmp_path):
    """Contexts of ASCII in bytes: a token is a character."""
    long = "x" * 70 + " the answer " + "y" * 70
    data = built(*words(tmp_path, [row("q?", "the answer", long), *[row(*ASKED[0])] * 3]), "data.eval_fraction=0")
    found = [
        bytes((each["input_ids"][each["start_positions"] : each["end_positions"] + 1] - 1).tolist()).decode()
        for each in data.train
        if each["start_positions"]
    ]
    assert "the answer" in found and set(found) <= {"the answer", "324 metres"}
    assert all(len(each["input_ids"]) <= 64 for each in data.train) and len(data.train) > 8
    assert any(each["start_positions"] == each["end_positions"] == 0 for each in data.train), "a window without it"


def test_the_best_span_is_scored_as_in_squad(tmp_path):
    data = built(*words(tmp_path), f"data.eval_path={tmp_path / 'squad.jsonl'}", "data.eval_fraction=0")
    answers, found = data.answers, []
    for number, each in enumerate(data.eval):
        start, end = torch.zeros(2, len(each["input_ids"]))
        if each["start_positions"]:  # what a perfect model says
            start[each["start_positions"]] = end[each["end_positions"]] = 9.0
        found.append(answers.best(number, start, end))
    assert scores.squad(answers.pairs(found)) == (1.0, 1.0)
    assert {text for _, score, text, _ in found if score > 9} == {text for _, text in ASKED}
    wrong = [(question, score, "metres of it", none) for question, score, _, none in found]
    f1, exact = scores.squad(answers.pairs(wrong))
    assert exact == 0 and 0 < f1 < 1


def test_no_answer_is_one_where_the_data_has_such_questions():
    answers = questions.Answers(["some context"] * 2, [["context"], []], [0, 1], [numpy.array([[-1, -1], [0, 4]])] * 2)
    likely, unlikely = torch.tensor([0.0, 5.0]), torch.tensor([5.0, 0.0])
    found = [answers.best(0, likely, likely), answers.best(1, unlikely, unlikely)]
    assert [text for _, _, text, _ in found] == ["some", "some"]
    assert scores.squad(answers.pairs(found)) == (0.5, 0.5), "none said of the second, which is right"


def test_answers_have_at_most_30_tokens():
    spans = numpy.array([[n, n + 1] for n in range(40)])
    answers = questions.Answers(["x" * 40], [["x"]], [0], [spans])
    for last, found in ((29, 30), (30, 1)):
        start, end = torch.zeros(2, 40)
        start[0], end[last], end[0] = 9, 9, 1
        assert len(answers.best(0, start, end)[2]) == found
    answers = questions.Answers(["c"] * 2, [["a"], []])
    windows = [(0, 3.0, "a", 5.0), (0, 2.0, "b", 1.0), (1, 3.0, "a", 5.0), (1, 2.0, "b", 4.0)]
    assert answers.pairs(windows) == [("a", ["a"]), ("", [""])]


def test_squads_own_file_is_read(tmp_path):
    asked = [{"question": q, "answers": [{"text": a, "answer_start": CONTEXT.find(a)}], "id": q} for q, a in ASKED]
    (tmp_path / "train-v1.1.json").write_text(
        json.dumps({"version": "1.1", "data": [{"title": "t", "paragraphs": [{"context": CONTEXT, "qas": asked}]}]})
    )
    told = ["data=text", f"data.path={tmp_path / 'train-v1.1.json'}", "data.task=question_answering"]
    data = built("model=bert_tiny", *told, "data.samples=null", "data.seq_len=64", "data.eval_fraction=0")
    assert sum(bool(each["start_positions"]) for each in data.train) >= len(ASKED)


@pytest.mark.parametrize(
    "changed,said",
    [
        ({"answers": {"text": ["tower"], "answer_start": [0]}}, "the answer 'tower' does not stand at character 0"),
        ({"answers": {"text": ["tower"], "answer_start": []}}, "equally long"),
        ({"answers": {"text": [1904], "answer_start": [0]}}, "the answer 1904 does not stand"),
        ({"answers": {"text": ["tower"], "answer_start": [CONTEXT.find("tower") - len(CONTEXT)]}}, "at character -"),
        ({"answers": '{"text": ["tower"], "answer_start": [4]}'}, "give a .jsonl"),
        ({"context": ""}, "not empty"),
        ({"question": 3}, "must be texts"),
    ],
)
def test_a_row_that_is_no_question_is_refused_by_its_place(tmp_path, changed, said):
    with pytest.raises(Refusal) as caught:
        built(*words(tmp_path, [row(*ASKED[0]), row(*ASKED[1]) | changed]), "data.eval_fraction=0")
    assert "line 2" in str(caught.value) and said in str(caught.value)


def test_what_is_left_out_or_counted_otherwise_is_told(tmp_path):
    """Null answers, questions that fill a row, and questions that are several windows."""
    odd = [row(*ASKED[0]) | {"answers": None}, row("q" * 63, "324 metres"), *[row(*ASKED[1])] * 4]
    words_of = [
        *words(tmp_path, odd),
        f"data.eval_path={tmp_path / 'squad.jsonl'}",
        "eval.max_samples=5",
        "data.eval_fraction=0",
    ]
    data = built(*words_of, "data.samples=3", "data.seq_len=96", "model.positions=96")
    said = "\n".join(data.warnings)
    assert "in 1 of 6 rows answers is null (the first: squad.jsonl, line 1)" in said
    assert f"3 questions to train on are {len(data.train)} samples" in said and "on 5 of 6 questions" in said
    assert "left out" not in said
    data = built(*words_of, "data.samples=3")
    assert "1 of 3 questions leave no room for a context in data.seq_len=64 (first: squad.jsonl, line 2)" in "\n".join(
        data.warnings
    )
    with pytest.raises(Refusal, match="Type a larger data.seq_len"):
        built(*words(tmp_path, [row("q" * 63, "324 metres")] * 2), "data.eval_fraction=0")


def test_an_answer_that_no_window_holds_whole_is_not_trained_as_none(tmp_path):
    """Windows of 64 tokens share a quarter of what the question leaves: an answer of 30 lies between two of them."""
    answer = "an answer of thirty characters"
    long = [row("q?", answer, "x" * 40 + answer + "y" * 80) | {"answers": {"text": [answer], "answer_start": [40]}}]
    data = built(*words(tmp_path, [*long, *[row(*ASKED[0])] * 3]), "data.eval_fraction=0")
    (said,) = (line for line in data.warnings if "stands whole in no window of data.seq_len=64" in line)
    assert said.startswith("1 of 4 questions") and "(first: squad.jsonl, line 1)" in said and "left out" in said
    assert not any(ord("x") + 1 in each["input_ids"] for each in data.train)
    with pytest.raises(Refusal, match="Type a larger data.seq_len"):
        built(*words(tmp_path, long), "data.eval_fraction=0")
    whole = built(*words(tmp_path, long), "data.eval_fraction=0", "data.seq_len=160", "model.positions=160")
    assert not any("left out" in line for line in whole.warnings) and len(whole.train) == 1


def test_spaces_around_an_answer_do_not_make_it_none(tmp_path):
    """A tokenizer of words has no token for them; in bytes they are tokens, and no part of what is learned."""
    spaced = row("q?", " 324 metres ")
    (one,) = (
        built(*words(tmp_path, [spaced]), "data.eval_fraction=0", "data.seq_len=160", "model.positions=160")
    ).train
    first, last = int(one["start_positions"]), int(one["end_positions"])
    assert bytes((one["input_ids"][first : last + 1] - 1).tolist()) == b"324 metres"


def test_columns_and_answers_that_are_not_used_are_told(tmp_path):
    several = row(*ASKED[0]) | {"answers": {"text": ["324 metres", "324"], "answer_start": [CONTEXT.find("324")] * 2}}
    rows = [several | {"title": "t"}, row(*ASKED[1]) | {"title": "t", "hint": "look"}, row(*ASKED[2])]
    said = "\n".join(built(*words(tmp_path, rows), "data.eval_fraction=0").warnings)
    assert "only question, context and answers are read of a row, and not title (2) and hint (1)" in said
    assert "1 of 3 questions to train on have several answers" in said


def test_a_saved_model_says_its_task():
    cfg = compose("model.pretrained=somewhere", "data=text", "data.path=squad.jsonl").cfg
    assert task.task_of(cfg, BertConfig(architectures=["BertForQuestionAnswering"])) == "question_answering"


def test_texts_without_questions_are_refused_before_anything_starts(tmp_path):
    (tmp_path / "t.txt").write_text("a text")
    told = ["model=bert_tiny", "data=text", f"data.path={tmp_path / 't.txt'}", "data.task=question_answering"]
    assert "a .txt file has no questions" in compose(*small(*told)).problems[0]
