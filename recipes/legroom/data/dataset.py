"""Builds the rows of the menu `data`: token ids with their labels, for training and for evaluation.

Shapes: T tokens, C classes. A row has `input_ids` (T,) and `labels`: () for classification and regression, (C,) for
several labels a row, (T,) for language modelling, where -100 marks tokens that the loss ignores.
"""

import copy
import dataclasses
import sysconfig
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import datasets
import numpy

from legroom.config import Config
from legroom.data import collate, masking, rows, sources, text_rows
from legroom.data import tokens as tokens_module
from legroom.data.masking import Masking
from legroom.data.questions import Answers
from legroom.data.tokens import Tokens
from legroom.errors import NotHere, Refusal
from legroom.options import batch
from legroom.options import data as data_options
from legroom.options.task import OF_ROWS
from legroom.ranks import rank_info

DUMMY_LOW, DUMMY_HIGH = 100, 30_000  # range of random ids in the Hugging Face guide
Head = Mapping[str, int] | None
"""label -> class of a pretrained classification head; None: the head is new"""
STAND_INS = 512  # rows of a data set that is not here
EVAL_FILE_INTERVAL = 10  # data=source: every tenth file is in the evaluation split


@dataclass
class Data:
    """The rows of a data set, and how they become batches.

    train, eval: datasets.Dataset in the torch format; eval is None without an evaluation split.
    collate: list of rows -> batch. vocab: one more than the largest possible token id.
    classes, names: their number and names; no names if unknown. tokenizer: of transformers, None for random ids.
    eval_available: rows of the evaluation split, of which eval.max_samples may have kept fewer; 0: those in eval.
    answers: of the questions to evaluate on. masking: of masked language modelling, done when a batch is made.
    head: label -> class of the pretrained head that goes on; None: there is none.
    group_by_length: rows of about the same length come together.
    stand_ins: the rows are random ones in place of a data set that is not on this machine.
    warnings: what was assumed, left out or cut.
    rank, ranks: of the parts into which every batch is split, this process has part `rank`.
    """

    task: str
    train: Any
    eval: Any
    collate: Callable
    vocab: int
    classes: int = 0
    pad_token_id: int = 0
    tokenizer: Any = None
    names: list[str] = field(default_factory=list)
    masking: Masking | None = None
    answers: Answers | None = None
    rank: int = 0
    ranks: int = 1
    eval_available: int = 0
    head: Head = None
    group_by_length: bool = False
    stand_ins: bool = False
    warnings: list[str] = field(default_factory=list)

    def highest_id(self) -> int:
        """The largest token id of all rows, and of what pads them."""
        parts = [part for part in (self.train, self.eval) if part is not None and len(part)]
        return max(self.pad_token_id, *(int(rows.flat(part, "input_ids")[0].max()) for part in parts))


# --- building ----------------------------------------------------------------------------------


def build_data(cfg: Config, task: str, vocab: int, head: Head = None, last_id: int | None = None) -> Data:
    """The rows of the chosen data set.

    task: as `options.task.task_of` says. vocab: of the model. head: see `labels.classes_of`. last_id:
    the token that the model's head looks for at the end of each row, which all rows need.
    Raises Refusal for data that cannot be used.
    """
    if cfg.data.kind == "dummy":
        built = _dummy(cfg, task, vocab, last_id)
    elif cfg.data.kind == "source":
        built = _source(cfg, task, vocab, head)
    else:
        built = _tokenised_or_stand_ins(cfg, task, vocab, head, last_id)
    built.rank, built.ranks = rank_info.data_share(cfg.parallelism)
    if (cfg.eval.window or cfg.eval.stride) and (task != "language_modelling" or built.eval is None):
        raise Refusal(
            "eval.window and eval.stride slide over the text of a language model's evaluation, and there is "
            "none here. Leave them out."
        )
    if built.eval is not None and len(built.eval) < built.eval_available and cfg.eval.enabled:
        built.warnings.append(
            f"the evaluation is on {len(built.eval):,} of {built.eval_available:,} samples, drawn by train.seed. Type "
            "eval.max_samples=null for all of them."
        )
    built.warnings += _check_batch(cfg, built)
    return built


def _samples(cfg: Config) -> int:
    """The number of rows to make, of data that has no end."""
    assert cfg.data.samples is not None, "options.data refuses null"
    return cfg.data.samples


def _dummy(cfg: Config, task: str, vocab: int, last_id: int | None) -> Data:
    """Random ids with random labels, as in the Hugging Face guide; with the ids as labels for a language model.

    An estimate computes with no value of a row: it gets one row of random ids, as often as there are samples. So a step
    on a million tokens is estimated in little memory.
    """
    random = numpy.random.default_rng(cfg.train.seed)
    if vocab > 2 * DUMMY_LOW:
        low, high = DUMMY_LOW, min(DUMMY_HIGH, vocab)
    else:
        low, high = 0, vocab
    classes = cfg.model.classes if task in ("classification", "multi_label") else 0

    def part(count: int) -> datasets.Dataset:
        if cfg.predicts and count > 1:
            return different(1).select(numpy.zeros(count, dtype=numpy.int64))
        return different(count)

    def different(count: int) -> datasets.Dataset:
        ids = random.integers(low, high, (count, cfg.data.seq_len))
        if last_id is not None:
            ids[:, -1] = last_id
        if task == "question_answering":
            first = random.integers(0, cfg.data.seq_len, count)
            columns = {"input_ids": ids, "start_positions": first, "end_positions": first}
            return datasets.Dataset.from_dict(columns).with_format("torch")
        if task == "regression":
            return rows.dataset(ids, random.standard_normal(count))
        if task == "multi_label":
            return rows.dataset(ids, random.integers(0, 2, (count, classes)).astype(float))
        return rows.dataset(ids, random.integers(0, classes, count) if classes else ids)

    train = part(_samples(cfg))
    held_out = part(cfg.data.eval_samples) if cfg.data.eval_samples else None
    data = Data(task, train, held_out, collate.stack, high, classes)
    if task == "masked_lm":
        data.masking = Masking(max(0, low - 1), high, (), masking.SHARE, cfg.train.seed)
    return data


def _source(cfg: Config, task: str, vocab: int, head: Head) -> Data:
    """Blocks of bytes from the files of Python's standard library. Whole files are held out for the evaluation."""
    root = Path(sysconfig.get_paths()["stdlib"])
    length = cfg.data.seq_len
    excluded = {"site-packages", "dist-packages", "test"}
    paths = []
    for path in sorted(root.rglob("*.py")):
        if not excluded.intersection(path.relative_to(root).parts):
            paths.append(path)
    if not paths:
        raise Refusal(f"data=source found no Python file in {root}. Choose data=text with data.path=.")

    def part(files: list[Path], count: int, window: int, stride: int) -> datasets.Dataset:
        text = b"\0".join(path.read_bytes() for path in files)
        tokens = numpy.frombuffer(text, dtype=numpy.uint8).astype(numpy.int64) + 1
        tokens[tokens == 1] = 0  # a zero byte between files ends a text
        blocks = len(tokens) // length
        if count > blocks:
            raise Refusal(
                f"the standard library holds {blocks} sequences of data.seq_len={length}, fewer than the {count} that "
                f"are configured. Type data.samples={blocks} or a smaller data.seq_len."
            )
        starts = numpy.linspace(0, blocks - 1, count).astype(int) * length  # evenly over all files
        spans = [(start, start + length) for start in starts]
        made, _ = rows.windows(tokens, window, stride, spans)
        return made

    warnings: list[str] = []
    encoder = tokens_module.for_data(cfg, vocab, warnings.append)
    if task == "masked_lm":
        encoder.need_mask("bytes")
    train_files = [path for index, path in enumerate(paths) if index % EVAL_FILE_INTERVAL != 0]
    train = part(train_files, _samples(cfg), length, length)
    held_out = None
    window, stride = data_options.window_and_stride(cfg)
    if cfg.data.eval_samples:
        held_out = part(paths[::EVAL_FILE_INTERVAL], cfg.data.eval_samples, window, stride)
    if window == stride == length:
        batch_of = collate.stack
    else:
        batch_of = collate.Padding(1, length, 0, with_mask=False)
    data = Data(task, train, held_out, batch_of, encoder.vocab, tokenizer=encoder.tokenizer, warnings=warnings)
    data.masking = _masking(cfg, task, encoder)
    return data


def _masking(cfg: Config, task: str, tokens: Tokens) -> Masking | None:
    """How texts are masked; None for another task."""
    if task != "masked_lm":
        return None
    mask = Masking(
        mask_id=tokens.tokenizer.mask_token_id,
        vocab=tokens.vocab,
        special=tuple(tokens.tokenizer.all_special_ids),
        share=cfg.data.mask_share or masking.SHARE,
        seed=cfg.train.seed,
    )
    if cfg.data.whole_words:
        continues, breaks = masking.continuing(tokens.tokenizer, tokens.vocab)
        mask = dataclasses.replace(mask, continues=continues, breaks=breaks)
    return mask


def _tokenised_or_stand_ins(cfg: Config, task: str, vocab: int, head: Head, last_id: int | None) -> Data:
    """`_tokenised`; an estimate, which needs lengths alone, takes random rows for those that are not here.

    Not here are a data set that the hub does not return, files that are not named yet, and rows whose tokenizer
    is not on this machine.
    """
    not_read = f"data={cfg.data.name} is not on this machine"
    instead = "data.path= names files."
    if data_options.are_not_named(cfg):
        not_read = f"data={cfg.data.name} has no data.path= yet"
    else:
        try:
            return _tokenised(cfg, task, vocab, head, last_id)
        except NotHere as error:
            if not cfg.predicts:
                raise
            if isinstance(error, tokens_module.NoTokenizer):
                not_read = f"the tokenizer {cfg.data.tokenizer} is not on this machine, so that no row can be read"
                instead = "data.tokenizer= may name a folder that has it."
    stand_ins = copy.copy(cfg)
    stand_ins.data = copy.copy(cfg.data)
    stand_ins.data.samples = cfg.data.samples or STAND_INS
    stand_ins.data.eval_samples = cfg.data.eval_samples or STAND_INS
    data = _dummy(stand_ins, task, vocab, last_id)
    data.stand_ins = True
    data.warnings.append(
        f"{not_read}, and an estimate needs the lengths of its rows alone: they are taken to be "
        f"{stand_ins.data.samples:,} of data.seq_len={cfg.data.seq_len} tokens. {instead}"
    )
    return data


def _tokenised(cfg: Config, task: str, vocab: int, head: Head, last_id: int | None) -> Data:
    """Texts or conversations in tokens: rows of different lengths."""
    warnings: list[str] = []
    train, evaluated, names, tokens, *answers = sources.build(cfg, task, vocab, head, warnings.append)
    held_out, available = evaluated if evaluated is not None else (None, 0)
    if last_id is not None:
        text_rows.check_ends(cfg, [part for part in (train, held_out) if part], last_id)
    return Data(
        task,
        train,
        held_out or None,
        collate.Padding(
            cfg.data.pad_to_multiple_of,
            cfg.data.seq_len,
            tokens.pad,
            with_mask=task != "language_modelling",
            row_labels=task in OF_ROWS,
        ),
        tokens.vocab,
        classes=len(names),
        pad_token_id=tokens.pad,
        tokenizer=tokens.as_given(),
        names=names,
        masking=_masking(cfg, task, tokens),
        answers=answers[0] if answers else None,
        eval_available=available,
        group_by_length=bool(cfg.data.group_by_length),
        warnings=warnings,
    )


def _check_batch(cfg: Config, data: Data) -> list[str]:
    """Warnings where a step is larger than the data. Raises Refusal if one batch is.

    An estimate says it in its own words, and estimates a step on what there is: `fit` gives many batches one data set.
    """
    if cfg.predicts:
        return []
    at_once = cfg.batch.per_device * cfg.parallelism.replicas
    count = len(data.train)
    if count < at_once:
        packed = "position_ids" in data.train.column_names
        raise Refusal(batch.larger_than_data(cfg, count, "packed row" if packed else "sample"))
    in_a_step = at_once * cfg.accumulation.steps
    if count < in_a_step:
        return [
            f"a step is to have {in_a_step:,} samples, and there are {count:,} to train on: "
            f"every step trains on those {count:,}."
        ]
    return []
