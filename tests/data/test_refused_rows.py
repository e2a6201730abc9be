"""Data of which nothing can be made is refused with its place and what to type; what is hard to see is shown."""

from __future__ import annotations

import json

import datasets
import pytest
from chat import CHATML, save_tokenizer, talk
from conftest import compose
from test_data import CLASSES, LM, built, refusal
from test_text_files import told
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from transformers import ByT5Tokenizer, PreTrainedTokenizerFast

from legroom.data import dataset, labels, preview, text_files, tokens
from legroom.errors import Refusal
from legroom.machine import host

ASKED = {"question": "How tall?", "context": "It is 3 m tall.", "answers": {"text": ["3 m"], "answer_start": [6]}}
QA = ["data.task=question_answering", "data.seq_len=64"]
CHAT = ["model=gpt2_tiny", "data=chat", "data.seq_len=64"]


@pytest.fixture
def letters(tmp_path):
    """The folder of a tokenizer of the letters a, b and c, which has no special token and leaves x out."""
    made = Tokenizer(models.WordLevel({letter: number for number, letter in enumerate("abc")}))
    made.normalizer = normalizers.Replace("x", "")
    made.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    PreTrainedTokenizerFast(tokenizer_object=made).save_pretrained(tmp_path / "letters")
    return tmp_path / "letters"


# --- files -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name,text,words",
    [
        ("t.json", "[" * 100_000, ["t.json cannot be read: it is nested too deeply"]),
        ("t.json", '{"data": [{"title": "t"}]}', ["t.json", "not SQuAD's form", "paragraphs"]),
        ("t.json", '{"data": [{"paragraphs": [{"context": "a", "qas": null}]}]}', ["t.json", "not SQuAD's form"]),
        ("t.jsonl", '{"question": "a", "text": "b"}', ["line 1", "no column context", "the row has question, text."]),
        ("t.jsonl", "\n", ["has no questions"]),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_file_of_questions_that_holds_none_is_refused(tmp_path, name, text, words):
    (tmp_path / name).write_text(text)
    line = refusal(*told(tmp_path / name, *QA), task="question_answering")
    assert all(word in line for word in words), line


def test_a_json_file_may_be_the_only_row(tmp_path):
    (tmp_path / "t.json").write_text(json.dumps({"text": "one\ntwo", "label": 0}, indent=1))
    assert len(built(*told(tmp_path / "t.json", "model=gpt2_tiny", "data.seq_len=4")).train) == 2


@pytest.mark.skipif(not host.has("zstandard"), reason="reads with zstandard")
def test_a_zst_file_that_is_cut_off_is_one_line(tmp_path):
    (tmp_path / "t.txt.zst").write_bytes(b"no zstandard")
    assert "t.txt.zst cannot be read" in refusal(*told(tmp_path / "t.txt.zst", "model=gpt2_tiny"))


def test_an_error_of_ours_is_not_said_to_be_of_the_file(tmp_path, monkeypatch):
    (tmp_path / "t.txt").write_text("text")
    monkeypatch.setitem(text_files.READERS, ".txt", lambda *_: iter([1 / 0]))
    with pytest.raises(ZeroDivisionError):
        list(text_files.rows(tmp_path / "t.txt", ["text"], text_files.Format(), "data.path=t.txt", print))


def test_an_unreadable_folder_is_not_looked_for_in_the_hub(tmp_path):
    (tmp_path / "rows.jsonl").write_text("no json")
    line = refusal("model=gpt2_tiny", "data=hub", f"data.path={tmp_path}")
    assert f"data.path={tmp_path}, data.split=train cannot be read by datasets" in line and "network" not in line


@pytest.mark.parametrize(
    "task,said", [(LM, "has no rows"), ("chat", "has no rows"), ("question_answering", "has no questions")]
)
def test_a_split_without_rows_is_refused(tmp_path, task, said):
    datasets.Dataset.from_list([talk("a", "b") | ASKED | {"text": "t"}]).save_to_disk(tmp_path)
    model = "bert_tiny" if task == "question_answering" else "gpt2_tiny"
    words = [f"model={model}", "data=hub", f"data.path={tmp_path}", f"data.task={task}", "data.split='train[:0]'"]
    assert f"data.split=train[:0] {said}." in refusal(*words, task=task)


def test_what_save_to_disk_writes_of_no_rows_is_refused(tmp_path):
    """datasets cannot open it again."""
    datasets.Dataset.from_dict({"text": []}).save_to_disk(tmp_path)
    assert "data.split=train cannot be read by datasets" in refusal(
        "model=gpt2_tiny", "data=hub", f"data.path={tmp_path}"
    )


def test_a_python_without_its_library_is_told_what_to_choose(tmp_path, monkeypatch):
    monkeypatch.setattr(dataset.sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path)})
    assert f"in {tmp_path}. Choose data=text with data.path=." in refusal("model=gpt2_tiny", "data=source")


# --- labels ----------------------------------------------------------------------------------------


def test_texts_without_any_label_are_refused(tmp_path):
    (tmp_path / "t.jsonl").write_text('{"text": "a", "label": []}\n' * 3)
    line = refusal(*told(tmp_path / "t.jsonl", "data.task=multi_label"), task="multi_label")
    assert "no row has a label" in line and "data.label_column=" in line


def test_the_same_number_in_all_rows_is_refused(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_text('{"text": "a", "label": 250}\n')
    words = ["data.task=regression"]
    assert not any("deviation" in line for line in built(*told(path, *words), task="regression").warnings)
    path.write_text('{"text": "a", "label": 2.5}\n' * 2)
    line = refusal(*told(path, *words), task="regression")
    assert "all 2 rows to train on have the label 2.5" in line


def test_bad_labels_without_a_place_are_refused():
    train, held_out = (datasets.Dataset.from_dict({"label": numbers}) for numbers in ([0, 1], [0, 2]))
    with pytest.raises(Refusal, match=r"^1 rows to evaluate on .*: 2 \(its place is not known\)"):
        labels.of_task(CLASSES, train, held_out, None, 3, print)


# --- tokenizers ------------------------------------------------------------------------------------


def test_a_slow_tokenizer_finds_no_answers(tmp_path):
    ByT5Tokenizer().save_pretrained(tmp_path / "slow")
    slow = f"data.tokenizer={tmp_path / 'slow'}"
    for name, row, words in (("q", ASKED, ["model=bert_tiny", "data=text", *QA]), ("c", talk("a", "b"), CHAT)):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(row) + "\n")
        line = refusal(
            *words, f"data.path={tmp_path}/{name}.jsonl", slow, "data.eval_fraction=0", task="question_answering"
        )
        assert line.startswith(slow) and "tokenizer.json" in line
    data = built(*told(tmp_path / "q.jsonl", "model=gpt2_tiny", "data.text_column=context", slow))
    ids = data.train[0]["input_ids"].tolist()
    assert ids == [byte + 3 for byte in ASKED["context"].encode()] + [1] and type(data.tokenizer) is ByT5Tokenizer


def test_a_tokenizer_without_a_mask_cannot_mask(tmp_path, letters):
    (tmp_path / "t.txt").write_text("abcx" * 12)
    words = told(tmp_path / "t.txt", "data.task=masked_lm", f"data.tokenizer={letters}")
    line = refusal(*words, task="masked_lm")
    assert f"data.tokenizer={letters} has no token for the mask" in line and "data.tokenizer=bytes" in line
    tokenizer = PreTrainedTokenizerFast.from_pretrained(letters)
    tokenizer.add_special_tokens({"mask_token": "[M]"})
    tokenizer.save_pretrained(letters)
    data = built(*words, task="masked_lm")
    assert (data.masking.mask_id, data.masking.vocab, data.masking.special) == (3, 4, (3,))


@pytest.mark.parametrize("same", [True, False])
def test_a_tokenizer_with_the_models_ids_needs_no_warning(tmp_path, letters, same):
    save_tokenizer(tmp_path / "model", None)
    save_tokenizer(tmp_path / "other", None)
    chosen, warned = tmp_path / "other" if same else letters, []
    words = ["data=text", "data.path=t.txt", f"model.pretrained={tmp_path}/model", f"data.tokenizer={chosen}"]
    assert len(tokens.for_data(compose(*words).cfg, 512, warned.append).tokenizer) == (261 if same else 3)
    if same:
        assert warned == []
    else:
        (line,) = warned
        assert f"data.tokenizer={letters} is not the tokenizer of" in line


def test_a_vocabulary_with_gaps_ends_behind_its_largest_id(tmp_path, letters):
    made = Tokenizer(models.WordLevel({"a": 0, "b": 400}))
    PreTrainedTokenizerFast(tokenizer_object=made).save_pretrained(tmp_path / "gap")
    assert [tokens.Tokens(str(each)).vocab for each in ("bytes", letters, tmp_path / "gap")] == [257, 3, 401]


def test_a_tokenizer_of_a_newer_library_is_a_sentence(letters):
    file = letters / "tokenizer.json"
    file.write_text(file.read_text().replace("WordLevel", "LevelOfWords"))
    with pytest.raises(Refusal, match=f"data.tokenizer={letters} cannot be loaded: .*data.tokenizer=bytes"):
        tokens.Tokens(str(letters))


def test_texts_without_a_token_are_no_rows(tmp_path, letters):
    path = tmp_path / "t.jsonl"
    path.write_text("".join(json.dumps({"text": text, "label": n % 2}) + "\n" for n, text in enumerate("abxc")))
    data = built(*told(path, f"data.tokenizer={letters}"), task=CLASSES)
    assert [row["input_ids"].tolist() for row in data.train] == [[0], [1], [2]]
    assert [int(row["labels"]) for row in data.train] == [0, 1, 1]
    path.write_text('{"text": "x"}\n')
    line = refusal(*told(path, "model=gpt2_tiny", f"data.tokenizer={letters}", "data.packing=true"))
    assert f"data.path={path} holds no text of two tokens or more" in line


@pytest.mark.parametrize(
    "template,said",
    [({"tool_use": CHATML}, "has no chat template of the name 'default'"), ({"default": CHATML, "rag": "x"}, None)],
    ids=["others", "default"],
)
def test_of_several_templates_the_default_one_is_taken(tmp_path, template, said):
    save_tokenizer(tmp_path / "tokenizer", template)
    (tmp_path / "t.jsonl").write_text(json.dumps(talk("a", "b")) + "\n")
    words = [*CHAT, f"data.path={tmp_path}/t.jsonl", f"data.tokenizer={tmp_path}/tokenizer", "data.eval_fraction=0"]
    if said:
        assert said in refusal(*words)
    else:
        data = built(*words)
        assert data.tokenizer.decode(data.train[0]["input_ids"]).startswith("<|im_start|>user\na")


def test_a_template_that_writes_the_date_is_told(tmp_path):
    (tmp_path / "t.jsonl").write_text(json.dumps(talk("a", "b")) + "\n")
    words = [*CHAT, f"data.path={tmp_path}/t.jsonl", f"data.tokenizer={tmp_path}/tokenizer", "data.eval_fraction=0"]
    for date in ("{{ strftime_now('%Y') }}", ""):
        save_tokenizer(tmp_path / "tokenizer", date + CHATML)
        assert sum("date of the day" in line for line in built(*words).warnings) == bool(date)


def test_a_very_long_cell_is_no_list_of_messages(tmp_path):
    """It takes 200 bytes of memory for each character."""
    rows = [str(talk("a", text)["messages"]) for text in ("b", "b" * 10**6)]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps({"messages": row}) + "\n" for row in rows))
    line = refusal(*CHAT, f"data.path={tmp_path}/t.jsonl")
    assert "line 2: messages is str" in line and "Save the rows as .jsonl" in line and len(line) < 400


# --- what is shown ---------------------------------------------------------------------------------


def test_a_preview_marks_masked_tokens_and_answers(tmp_path):
    data = built("model=bert_tiny", "data=source", "data.task=masked_lm", task="masked_lm", vocab=264)
    row = {key: value[None].clone() for key, value in data.train[1].items()}
    data.masking(row, 0, [1])
    shown = preview.samples(data, 2).split("sample 2 of 8, ")[1]
    hidden = int((row["labels"] >= 0).sum())
    assert shown.startswith(f"32 tokens, {hidden} trained on") and tokens.MASK in shown
    (tmp_path / "t.jsonl").write_text(json.dumps(ASKED) + "\n")
    data = built(*told(tmp_path / "t.jsonl", *QA), task="question_answering")
    assert "How tall?" in preview.samples(data, 1) and preview.samples(data, 1).count(">>>3 m<<<") == 1


@pytest.mark.parametrize("count, others", [(text_files.MOST_UNREAD, False), (text_files.MOST_UNREAD + 1, True)])
def test_of_many_unread_columns_some_are_named(count, others):
    unread = text_files.Unread()
    unread.add({f"column_{n}": "value" for n in range(count)} | {"empty": None, "text": "read"}, ["text"])
    shown = str(unread)
    assert shown.count("column_") == text_files.MOST_UNREAD and shown.endswith("others") == others
    assert "empty" not in shown and "text" not in shown
