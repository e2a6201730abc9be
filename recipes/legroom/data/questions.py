"""Questions whose answer is a span of a context, in SQuAD's form: `question`, `context` and `answers`, an object with
the lists `text` and `answer_start` (characters; empty lists: the context has no answer).

A context that is too long becomes several rows, windows with STRIDE tokens in common; where a window has no whole
answer, its answer is its first token, as in BERT's own training (Devlin et al. 2018, arXiv 1810.04805). T tokens.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import datasets
import numpy
import torch

from legroom.config import Config
from legroom.data import rows, tokens
from legroom.data.bad_rows import BadRows
from legroom.data.text_data import Warn, encodable
from legroom.data.text_files import Rows, Unread
from legroom.errors import Refusal
from legroom.options import data_sources
from legroom.options import model as model_options

COLUMNS = ("question", "context", "answers")
STRIDE = 128  # tokens that two windows of a context have in common, as in BERT's training; at most a quarter of a row
LONGEST_ANSWER = 30  # tokens of a predicted one


def collect(found: Rows, source: str, warn: Warn, bad: BadRows) -> datasets.Dataset:
    """Questions with `starts` and `texts` of their answers, and `place`. bad: is given rows that are none.

    Raises Refusal if no row is left.
    """
    without: list[str] = []  # places of rows whose answers are null
    unread = Unread()
    columns: dict[str, list] = {name: [] for name in ("question", "context", "starts", "texts", "place")}
    for place, row in found:
        bad.rows += 1
        unread.add(row, COLUMNS)
        try:
            values = (*_question(row, f"{source}: {place}:"), place)
        except Refusal as refusal:
            bad.add(place, str(refusal))
            continue
        if row["answers"] is None:
            without.append(place)
        for name, value in zip(columns, values):
            columns[name].append(value)
    if not columns["question"]:
        bad.check_all(source)
        raise Refusal(f"{source} has no questions.")
    if without:
        total = len(columns["place"])
        warn(
            f"in {len(without):,} of {total:,} rows answers is null (the first: {without[0]}): these count as "
            "questions without an answer."
        )
    if unread:
        warn(f"only {data_sources.listed(COLUMNS)} are read of a row, and not {unread}.")
    kinds = {"starts": [datasets.Value("int64")], "texts": [datasets.Value("large_string")]}
    features = {name: kinds.get(name, datasets.Value("large_string")) for name in columns}
    return datasets.Dataset.from_dict(columns, datasets.Features(features))


def _question(row: dict[str, Any], where: str) -> tuple[str, str, list[int], list[str]]:
    """(question, context, where its answers begin, the answers) of a row. Raises Refusal, which begins with `where`."""
    for name in COLUMNS:
        if name not in row:
            raise Refusal(
                f"{where} there is no column {name}: data.task=question_answering needs {', '.join(COLUMNS)}; "
                f"the row has {', '.join(row)}. For another task type data.task=."
            )
    question = row["question"]
    context = row["context"]
    answers = row["answers"]
    for text in (question, context):
        if not isinstance(text, str) or not text.strip():
            raise Refusal(f"{where} question and context must be texts, and not empty.")
    texts = None
    starts = None
    if answers is None:
        texts = []
        starts = []
    elif isinstance(answers, dict):
        texts = answers.get("text")
        starts = answers.get("answer_start")
    if not isinstance(texts, list) or not isinstance(starts, list) or len(texts) != len(starts):
        hint = " A .csv file has none: give a .jsonl, .json or .parquet file." if isinstance(answers, str) else ""
        raise Refusal(f"{where} answers must be an object with the lists text and answer_start, equally long.{hint}")
    for text, start in zip(texts, starts):
        is_place = isinstance(text, str) and text != "" and type(start) is int and start >= 0
        if not is_place or context[start : start + len(text)] != text:
            raise Refusal(f"{where} the answer {text!r:.40} does not stand at character {start} of its context.")
    return encodable(question, where), encodable(context, where), starts, texts


@dataclass
class Answers:
    """What the rows to evaluate on are windows of.

    contexts, answers: of each question. question_of: the question of each row. spans: of each row its tokens' first and
    last characters in the context, (T, 2); -1 for tokens that are not of it.
    """

    contexts: list[str]
    answers: list[list[str]]
    question_of: list[int] = field(default_factory=list)
    spans: list[numpy.ndarray] = field(default_factory=list)

    def best(self, row: int, start: torch.Tensor, end: torch.Tensor) -> tuple[int, float, str, float]:
        """(the question, the score of a row's best answer, the answer, the score of none). start, end: (T,) logits."""
        spans = self.spans[row]  # (T, 2)
        question = self.question_of[row]
        outside = torch.from_numpy(spans[:, 0] < 0)
        first = start[: len(spans)].float().masked_fill(outside, -torch.inf)
        last = end[: len(spans)].float().masked_fill(outside, -torch.inf)
        scores = first[:, None] + last[None, :]  # (T, T), of each first and each last token
        allowed = torch.ones_like(scores, dtype=torch.bool).triu().tril(LONGEST_ANSWER - 1)
        best = int(scores.masked_fill(~allowed, -torch.inf).argmax())
        first_token, last_token = divmod(best, len(spans))
        answer = self.contexts[question][spans[first_token, 0] : spans[last_token, 1]]
        return question, float(scores.flatten()[best]), answer, float(start[0] + end[0])

    def pairs(self, best_of_rows: list[tuple[int, float, str, float]]) -> list[tuple[str, list[str]]]:
        """(the predicted answer, the true ones) of each question; "" for none. best_of_rows: `best` of all rows."""
        best: dict[int, tuple[float, str]] = {}  # of all windows of a question
        score_of_none: dict[int, float] = {}
        for question, score, text, none in best_of_rows:
            best[question] = max((score, text), best.get(question, (-numpy.inf, "")))
            score_of_none[question] = min(none, score_of_none.get(question, numpy.inf))
        none_is_possible = not all(self.answers)
        pairs = []
        for question, (score, text) in sorted(best.items()):
            if none_is_possible and score_of_none[question] > score:
                text = ""
            pairs.append((text, self.answers[question] or [""]))
        return pairs


def build(
    cfg: Config, train: datasets.Dataset, held_out: datasets.Dataset | None, encoder: tokens.Tokens, warn: Warn
) -> tuple[datasets.Dataset, Any, list[str], tokens.Tokens, Answers | None]:
    """The rows of questions, as `text_rows.build` gives those of texts, and what the evaluation needs.

    Raises Refusal for a tokenizer that does not say where in a text its tokens are.
    """
    if not encoder.tokenizer.is_fast:
        raise Refusal(f"data.tokenizer={cfg.data.tokenizer} is slow, and answers need a fast one (tokenizer.json).")
    train = train.select(range(len(train))[: cfg.data.samples])
    several = [texts for texts in train["texts"] if len(set(texts)) > 1]
    if several:
        warn(
            f"{len(several):,} of {len(train):,} questions to train on have several answers: the first one is learned."
        )
    train_rows = _rows(cfg, train, encoder.tokenizer, warn)
    if held_out is None:
        return train_rows, None, [], encoder, None
    most = cfg.data.eval_samples or cfg.eval.max_samples
    kept = held_out.select(rows.chosen(len(held_out), most, cfg.train.seed))
    if len(kept) < len(held_out) and cfg.eval.enabled:
        warn(f"the evaluation is on {len(kept):,} of {len(held_out):,} questions, drawn by train.seed.")
    answers = Answers(kept["context"][:], kept["texts"][:])
    evaluated = _rows(cfg, kept, encoder.tokenizer, warn, answers)
    return train_rows, (evaluated, len(evaluated)), [], encoder, answers


def _rows(
    cfg: Config, part: datasets.Dataset, tokenizer: Any, warn: Warn, answers: Answers | None = None
) -> datasets.Dataset:
    """The rows of questions, without those that do not fit. answers: is given what the evaluation needs of each row.

    Raises Refusal if none does.
    """
    left_out = defaultdict[str, list[str]](list)  # why -> the places of such questions
    length = f"data.seq_len={cfg.data.seq_len}"
    windows = rows.ragged(_windows(cfg, part, tokenizer, left_out, answers))
    kept = len(part) - sum(len(places) for places in left_out.values())
    for why, places in left_out.items():
        line = f"{len(places):,} of {len(part):,} questions {why} {length} (first: {places[0]})"
        if kept == 0:
            raise Refusal(f"{line}. Type a larger data.seq_len.")
        warn(f"{line}, and are left out.")
    if len(windows) > kept:
        what = "to train on" if answers is None else "to evaluate on"
        warn(f"{kept:,} questions {what} are {len(windows):,} samples: windows of {length} over their contexts.")
    return windows


def _windows(
    cfg: Config, part: datasets.Dataset, tokenizer: Any, left_out: dict[str, list[str]], answers: Answers | None
) -> Iterator[dict]:
    """The rows of questions. left_out: is given why a question has none -> the places of such questions."""
    with_types = model_options.takes_token_types(cfg)
    around_pair = tokenizer.num_special_tokens_to_add(pair=True) - tokenizer.num_special_tokens_to_add(pair=False)
    for number, row in enumerate(part.to_list()):
        room = cfg.data.seq_len - len(tokenizer(row["question"])["input_ids"])
        if room <= around_pair:
            left_out["leave no room for a context in"].append(row["place"])
            continue
        encoded = tokenizer(
            row["question"],
            row["context"],
            truncation="only_second",
            max_length=cfg.data.seq_len,
            stride=min(STRIDE, room // 4),
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
        )
        spans_of_windows = []
        for window, places in enumerate(encoded["offset_mapping"]):
            of_context = numpy.array([sequence == 1 for sequence in encoded.sequence_ids(window)])
            spans_of_windows.append(numpy.where(of_context[:, None], numpy.array(places), -1))
        labels = [_labels(row, spans) for spans in spans_of_windows]
        is_whole_somewhere = any(last > 0 for _, last in labels)
        if answers is None and row["starts"] and not is_whole_somewhere:  # it would be trained as none
            left_out["have an answer that stands whole in no window of"].append(row["place"])
            continue
        for window, ids in enumerate(encoded["input_ids"]):
            if answers is not None:
                answers.question_of.append(number)
                answers.spans.append(spans_of_windows[window])
            made = {"input_ids": ids}
            if with_types and "token_type_ids" in encoded:
                made["token_type_ids"] = encoded["token_type_ids"][window]
            made["start_positions"], made["end_positions"] = labels[window]
            yield made


def _labels(row: dict[str, Any], spans: numpy.ndarray) -> tuple[int, int]:
    """(the first token of the first answer, the last); the row's first token if the window lacks a part of it."""
    if not row["starts"]:
        return 0, 0
    text = row["texts"][0]
    start = row["starts"][0]
    begin = start + len(text) - len(text.lstrip())  # tokens may lack the spaces
    end = start + len(text.rstrip())
    within = numpy.flatnonzero((spans[:, 0] >= 0) & (spans[:, 0] < end) & (spans[:, 1] > begin))
    if len(within) == 0:
        return 0, 0
    first, last = int(within[0]), int(within[-1])
    if spans[first, 0] > begin or spans[last, 1] < end:
        return 0, 0
    return first, last
