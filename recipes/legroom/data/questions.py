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
from legroom.options.model_families import TOKEN_TYPES

COLUMNS = ("question", "context", "answers")
STRIDE = 128  # tokens that two windows of a context have in common, as in BERT's training; at most a quarter of a row
LONGEST_ANSWER = 30  # tokens of a predicted one


def collect(found: Rows, source: str, warn: Warn, bad: BadRows) -> datasets.Dataset:
    """Questions with `starts` and `texts` of their answers, and `place`. bad: is given rows that are none.

    Raises Refusal if no row is left.
    """
    without, unread = list[str](), Unread()  # places of rows whose answers are null; columns beside these
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
        said = f"in {len(without):,} of {len(columns['place']):,} rows answers is null (the first: {without[0]})"
        warn(f"{said}: these count as questions without an answer.")
    if unread:
        warn(f"only {data_sources.listed(COLUMNS)} are read of a row, and not {unread}.")
    kinds = {"starts": [datasets.Value("int64")], "texts": [datasets.Value("large_string")]}
    features = {name: kinds.get(name, datasets.Value("large_string")) for name in columns}
    return datasets.Dataset.from_dict(columns, datasets.Features(features))


def _question(row: dict[str, Any], where: str) -> tuple[str, str, list[int], list[str]]:
    """(question, context, where its answers begin, the answers) of a row. Raises Refusal, which begins with `where`."""
    missing = [name for name in COLUMNS if name not in row]
    if missing:
        raise Refusal(
            f"{where} there is no column {missing[0]}: data.task=question_answering needs {', '.join(COLUMNS)}; "
            f"the row has {', '.join(row)}. For another task type data.task=."
        )
    question, context, answers = (row[name] for name in COLUMNS)
    if not (isinstance(question, str) and isinstance(context, str) and question.strip() and context.strip()):
        raise Refusal(f"{where} question and context must be texts, and not empty.")
    if answers is None:
        answers = {"text": [], "answer_start": []}
    texts, starts = (answers.get(key) if isinstance(answers, dict) else None for key in ("text", "answer_start"))
    if not isinstance(texts, list) or not isinstance(starts, list) or len(texts) != len(starts):
        hint = " A .csv file has none: give a .jsonl, .json or .parquet file." if isinstance(answers, str) else ""
        raise Refusal(f"{where} answers must be an object with the lists text and answer_start, equally long.{hint}")
    for text, start in zip(texts, starts):
        stands = isinstance(text, str) and text and type(start) is int and start >= 0
        if not stands or context[start : start + len(text)] != text:
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
        spans, question = self.spans[row], self.question_of[row]
        outside = torch.from_numpy(spans[:, 0] < 0)
        first, last = (logits[: len(spans)].float().masked_fill(outside, -torch.inf) for logits in (start, end))
        scores = first[:, None] + last[None, :]
        allowed = torch.ones_like(scores, dtype=torch.bool).triu().tril(LONGEST_ANSWER - 1)
        place = int(scores.masked_fill(~allowed, -torch.inf).argmax())
        begin, behind = spans[place // len(spans), 0], spans[place % len(spans), 1]
        best = float(scores.flatten()[place])
        return question, best, self.contexts[question][begin:behind], float(start[0] + end[0])

    def pairs(self, found: list[tuple[int, float, str, float]]) -> list[tuple[str, list[str]]]:
        """(what was said, the true answers) of each question; "" for none. found: `best` of all rows."""
        said: dict[int, tuple[float, str, float]] = {}
        for question, score, text, none in found:
            kept = said.get(question, (-numpy.inf, "", numpy.inf))
            said[question] = (*max((score, text), kept[:2]), min(none, kept[2]))
        none_possible = not all(self.answers)
        return [
            ("" if none_possible and none > score else text, self.answers[question] or [""])
            for question, (score, text, none) in sorted(said.items())
        ]


def build(
    cfg: Config, train: datasets.Dataset, held_out: datasets.Dataset | None, encoder: tokens.Tokens, warn: Warn
) -> tuple[datasets.Dataset, Any, list[str], tokens.Tokens, Answers | None]:
    """The rows of questions, as `text_rows.build` gives those of texts, and what the evaluation needs.

    Raises Refusal for a tokenizer that does not say where in a text its tokens are.
    """
    if not encoder.tokenizer.is_fast:
        raise Refusal(f"data.tokenizer={cfg.data.tokenizer} is slow, and answers need a fast one (tokenizer.json).")
    train = train.select(range(len(train))[: cfg.data.samples])
    several = sum(len(set(texts)) > 1 for texts in train["texts"])
    if several:
        warn(f"{several:,} of {len(train):,} questions to train on have several answers: the first one is learned.")
    made = _rows(cfg, train, encoder.tokenizer, warn)
    if held_out is None:
        return made, None, [], encoder, None
    most = cfg.data.eval_samples or cfg.eval.max_samples
    kept = held_out.select(rows.chosen(len(held_out), most, cfg.train.seed))
    if len(kept) < len(held_out) and cfg.eval.enabled:
        warn(f"the evaluation is on {len(kept):,} of {len(held_out):,} questions, drawn by train.seed.")
    answers = Answers(kept["context"][:], kept["texts"][:])
    evaluated = _rows(cfg, kept, encoder.tokenizer, warn, answers)
    return made, (evaluated, len(evaluated)), [], encoder, answers


def _rows(
    cfg: Config, part: datasets.Dataset, tokenizer: Any, warn: Warn, answers: Answers | None = None
) -> datasets.Dataset:
    """The rows of questions, without those that do not fit. answers: is given what the evaluation needs of each row.

    Raises Refusal if none does.
    """
    left_out, length = defaultdict[str, list[str]](list), f"data.seq_len={cfg.data.seq_len}"
    made = rows.ragged(_windows(cfg, part, tokenizer, left_out, answers))
    kept = len(part) - sum(map(len, left_out.values()))
    for why, places in left_out.items():
        said = f"{len(places):,} of {len(part):,} questions {why} {length} (first: {places[0]})"
        if not kept:
            raise Refusal(f"{said}. Type a larger data.seq_len.")
        warn(f"{said}, and are left out.")
    if len(made) > kept:
        what = "to train on" if answers is None else "to evaluate on"
        warn(f"{kept:,} questions {what} are {len(made):,} samples: windows of {length} over their contexts.")
    return made


def _windows(
    cfg: Config, part: datasets.Dataset, tokenizer: Any, left_out: dict[str, list[str]], answers: Answers | None
) -> Iterator[dict]:
    """The rows of questions. left_out: is given why a question has none -> the places of such questions."""
    with_types = bool(cfg.model.pretrained) or cfg.model.family in TOKEN_TYPES
    around_pair = tokenizer.num_special_tokens_to_add(pair=True) - tokenizer.num_special_tokens_to_add(pair=False)
    for number, row in enumerate(part.to_list()):
        room = cfg.data.seq_len - len(tokenizer(row["question"])["input_ids"])
        if room <= around_pair:
            left_out["leave no room for a context in"].append(row["place"])
            continue
        found = tokenizer(
            row["question"],
            row["context"],
            truncation="only_second",
            max_length=cfg.data.seq_len,
            stride=min(STRIDE, room // 4),
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
        )
        all_spans = []
        for window, places in enumerate(found["offset_mapping"]):
            of_context = numpy.array([kind == 1 for kind in found.sequence_ids(window)])
            all_spans.append(numpy.where(of_context[:, None], numpy.array(places), -1))
        labels = [_labels(row, spans) for spans in all_spans]
        if answers is None and row["starts"] and not any(last for _, last in labels):  # it would be trained as none
            left_out["have an answer that stands whole in no window of"].append(row["place"])
            continue
        for window, (ids, spans, (first, last)) in enumerate(zip(found["input_ids"], all_spans, labels)):
            if answers is not None:
                answers.question_of.append(number)
                answers.spans.append(spans)
            has_types = with_types and "token_type_ids" in found
            types = {"token_type_ids": found["token_type_ids"][window]} if has_types else {}
            yield {"input_ids": ids, **types, "start_positions": first, "end_positions": last}


def _labels(row: dict[str, Any], spans: numpy.ndarray) -> tuple[int, int]:
    """(the first token of the first answer, the last); the row's first token if the window lacks a part of it."""
    if not row["starts"]:
        return 0, 0
    text, begin = row["texts"][0], row["starts"][0]
    begin, behind = begin + len(text) - len(text.lstrip()), begin + len(text.rstrip())  # tokens may lack the spaces
    within = numpy.flatnonzero((spans[:, 0] >= 0) & (spans[:, 0] < behind) & (spans[:, 1] > begin))
    if not len(within) or spans[within[0], 0] > begin or spans[within[-1], 1] < behind:
        return 0, 0
    return int(within[0]), int(within[-1])
