"""data: checks of files and lengths, and the entries for TrainingArguments."""

from collections.abc import Collection
from typing import Any

from legroom import paths
from legroom.config import Config
from legroom.errors import Refusal
from legroom.options import data_sources, hooks, task
from legroom.options.data_sources import BYTE_VOCAB
from legroom.records import saved_model

ENDLESS = ("dummy", "source")  # data that is made; of other data null means all rows
OF_TALKS = (
    "data.messages_column",
    "data.prompt_column",
    "data.completion_column",
    "data.train_on",
    "data.template_arguments",
)
# What transformers' apply_chat_template takes beside the variables of a template.
GIVEN_TO_TEMPLATES = (
    "conversation",
    "messages",
    "tools",
    "documents",
    "chat_template",
    "add_generation_prompt",
    "continue_final_message",
    "tokenize",
    "padding",
    "truncation",
    "max_length",
    "return_tensors",
    "return_dict",
    "return_assistant_tokens_mask",
    "tokenizer_kwargs",
)
TASKS_OF_ANY = ("chat", *task.OF_TOKENS, *task.OF_ROWS, "question_answering")  # in files and data sets of any kind
OTHER_INPUTS = {"image_size", "num_mel_bins", "feat_extract_norm", "conv_dim"}  # keys of a configuration
# Files of which a folder has at least one if it holds a tokenizer.
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "vocab*", "*.model", "*.bpe", "*.tiktoken", "tekken.json")


def resolve(cfg: Config) -> list[str]:
    """Fills in the tokenizer: the one that pretrained weights bring, bytes for the models of the menu."""
    if cfg.data.kind in data_sources.TEXTS and cfg.data.tokenizer is None:
        cfg.data.tokenizer = cfg.model.pretrained or "bytes"
    return []


def problems(cfg: Config, given: Collection[str] = ()) -> list[str]:
    """Problems: files that do not exist or do not fit the task, and vocabularies too small for bytes."""
    data, found = cfg.data, []
    found += _tokenizer_problems(cfg) + _encoding_problems(cfg)
    in_bytes = data.kind == "source" or data.tokenizer == "bytes"
    if in_bytes and not cfg.model.pretrained and cfg.model.vocab < BYTE_VOCAB:
        found.append(
            f"model.vocab={cfg.model.vocab} is too small for bytes, which need {BYTE_VOCAB}. Type model.vocab=512."
        )
    if data.kind in ENDLESS and data.samples is None:
        return found + [f"data={data.name} needs a number of sequences, not data.samples=null. Type data.samples=512."]
    if data.kind in data_sources.OWN_FILES and data.path is None:
        kinds = ".jsonl, .json, .parquet or .csv" if data.kind == "chat" else ".txt, .jsonl, .csv or .parquet"
        return found + [f"data={data.name} needs data.path=: {kinds}, a file, a folder or a pattern."]
    if data.kind == "text" and data.task == "chat":
        return found + ["data.task=chat with data=text: type data=chat, which reads conversations from files."]
    possible = task.TASKS.get(data.kind, TASKS_OF_ANY if data.kind != "dummy" else TASKS_OF_ANY[1:])
    if data.task is not None and data.task not in possible:
        return found + [f"data.task={data.task} with data={data.name}: its rows are for {', '.join(possible)} alone."]
    if data.kind == "hub":
        found += _hub_problems(cfg)
    return (
        found
        + _ignored(cfg, given)
        + _template_problems(cfg)
        + _file_problems(cfg)
        + _group_problems(cfg)
        + _mask_problems(cfg)
    )


def _ignored(cfg: Config, given: Collection[str]) -> list[str]:
    """Keys that were typed and say nothing of these rows. The task of pretrained weights may be open."""
    data, kind, talks = cfg.data, task.task(cfg), task.has_conversations(cfg)
    used = {
        "data.text_column": not talks and kind != "question_answering",
        **dict.fromkeys(("data.label_column", "data.pair_column"), kind is None or kind in task.OF_ROWS),
        **dict.fromkeys(OF_TALKS, talks),
    }
    found = [f"{key} would be ignored: data.task={data.task or kind} has no use for it. Leave it out." for key in used]
    found = [line for key, line in zip(used, found) if key in given and not used[key]]
    if "data.eval_fraction" in given and data.eval_fraction and (data.eval_path or data.eval_split):
        found.append("data.eval_fraction would be ignored: the rows to evaluate on are named. Leave it out.")
    return found


def _template_problems(cfg: Config) -> list[str]:
    """Variables of a chat template that are none."""
    typed = cfg.data.template_arguments
    if typed is None:
        return []
    if not isinstance(typed, dict):
        return [
            f"data.template_arguments={typed} is no mapping of names to values. Type it as "
            "'data.template_arguments={enable_thinking: false}'."
        ]
    return [
        f"data.template_arguments: {name} is no variable of a template, but what Legroom gives to it. Leave it out."
        for name in typed
        if name in GIVEN_TO_TEMPLATES
    ]


def _file_problems(cfg: Config) -> list[str]:
    """Files that do not exist, or whose kind cannot hold what is trained on."""
    data, found = cfg.data, []
    for key in ("path", "eval_path"):
        value = getattr(data, key)
        if value is None or data.kind not in (*data_sources.OWN_FILES, *data_sources.PUBLISHED):
            continue
        try:
            if data.kind in data_sources.PUBLISHED:
                data_sources.splits(data.kind, value)
                continue
            kind, typed = data_sources.kind(data_sources.find(value, f"data.{key}")[0]), f"data.{key}={value}"
            if kind == ".txt":
                found += _txt_problems(cfg, typed)
            elif data.documents:
                found.append(not_documents(data.documents, f"{typed} ({kind})"))
            if data.separator and kind not in (".csv", ".tsv"):
                found.append(f"data.separator={data.separator} is for .csv and .tsv files: {typed}. Leave it out.")
            if data.encoding and kind == ".parquet":
                found.append(f"data.encoding={data.encoding} is for text files, and {typed} is none. Leave it out.")
        except Refusal as refusal:
            found.append(str(refusal))
    return found


def not_documents(documents: str, source: str) -> str:
    """What is wrong with data.documents. source: the rows that are no plain text."""
    return f"data.documents={documents} is for .txt files, and of {source} each row is a document. Leave it out."


def _hub_problems(cfg: Config) -> list[str]:
    """A data set that is not named, or lies in no folder. The hub is asked later."""
    data, found = cfg.data, []
    if data.path is None:
        found.append("data=hub needs data.path=: an id such as stanfordnlp/imdb, or a folder of data sets.")
    elif not paths.expanded(data.path).exists() and (data.path.count("/") > 1 or data.path[0] in "./~"):
        found.append(f"data.path={data.path}: there is no such folder.")
    return found


def _txt_problems(cfg: Config, files: str) -> list[str]:
    """Why a .txt file does not do. files: the key that names it, with its value."""
    data = cfg.data
    if data.kind == "chat":
        return [
            f"data=chat: a .txt file has no conversations: {files}. Give a .jsonl file with {data.messages_column} in "
            "each line, or type data=text."
        ]
    if task.task(cfg) == "question_answering":
        return [f"data.task={data.task}: a .txt file has no questions: {files}. Give a .jsonl, .json or .parquet file."]
    if task.task(cfg) not in task.OF_ROWS:
        return []
    chosen = f"data.task={data.task}" if data.task else f"model={cfg.model.name} with data.task=null"
    return [
        f"{chosen} needs labels, and a .txt file has none: {files}. Give a .jsonl, "
        f".csv or .parquet file with the columns {data.text_column} and {data.label_column}."
    ]


def _mask_problems(cfg: Config) -> list[str]:
    """Keys of masks where nothing is masked."""
    typed = [f"data.{key}={value}" for key in ("mask_share", "whole_words") if (value := getattr(cfg.data, key))]
    if not typed or task.task(cfg) == "masked_lm":
        return []
    return [f"{' and '.join(typed)}: for data.task=masked_lm alone. Type it, or leave the key out."]


def _group_problems(cfg: Config) -> list[str]:
    """Why there is nothing to group: rows of one length."""
    even = not task.has_conversations(cfg) and task.task(cfg) in task.OF_TOKENS
    return [even_rows(cfg)] if cfg.data.group_by_length and even else []


def even_rows(cfg: Config) -> str:
    """Why data.group_by_length has nothing to do for a stream of texts."""
    return (
        f"data.group_by_length=true: the rows of data={cfg.data.name} are blocks of data.seq_len={cfg.data.seq_len} "
        "tokens, all of one length. Leave it out."
    )


def _tokenizer_problems(cfg: Config) -> list[str]:
    """A folder of pretrained weights that brings no tokenizer, where it is the one to be used."""
    pretrained = cfg.model.pretrained
    if not pretrained or cfg.data.tokenizer != pretrained:
        return []
    folder = paths.expanded(pretrained)
    if not (folder / "config.json").is_file() or any(any(folder.glob(name)) for name in TOKENIZER_FILES):
        return []  # a folder without a model is refused with model.pretrained; the hub is asked later
    if OTHER_INPUTS & saved_model.settings(folder / "config.json").keys():  # of models of images or of audio
        return []  # refused as what it is, once its class is known
    return [
        f"model.pretrained={pretrained} brings no tokenizer, so the ids that its weights were trained on are not "
        "known. Save the tokenizer into the folder (tokenizer.save_pretrained), or name it with data.tokenizer=."
    ]


def _encoding_problems(cfg: Config) -> list[str]:
    """An encoding that Python does not know, and keys of files where there are none."""
    data, found = cfg.data, []
    if data.encoding is not None:
        try:
            "".encode(data.encoding)
        except (LookupError, ValueError):
            found.append(f"data.encoding={data.encoding} is no encoding of texts. Type utf-8, latin-1 or another one.")
    if data.kind in data_sources.PUBLISHED and data.path is None and data.separator is not None:
        found.append(f"data.separator={data.separator} is for files of your own. Give data.path=, or leave it out.")
    return found


def warnings(cfg: Config) -> list[str]:
    """Batch sizes and lengths that leave part of a GPU's matrix units idle: no multiple of 8, and not 1, 2 or 4."""
    sizes = {"batch.per_device": cfg.batch.per_device, "data.seq_len": cfg.data.seq_len}
    odd = [f"{key}={value}" for key, value in sizes.items() if value % 8 and value not in (1, 2, 4)]
    return [f"{', '.join(odd)}: not a multiple of 8, which leaves part of a GPU's matrix units idle."] if odd else []


def training_arguments(cfg: Config) -> dict[str, Any]:
    """Entries for TrainingArguments."""
    return {
        "dataloader_pin_memory": cfg.data.pin_memory and cfg.target.on_gpu,
        "dataloader_num_workers": cfg.data.workers,
        "dataloader_persistent_workers": cfg.data.workers > 0,
        "accelerator_config": {"non_blocking": cfg.target.on_gpu},
    }


def window_and_stride(cfg: Config) -> tuple[int, int]:
    """(tokens in a window of the evaluation, tokens by which it moves on)."""
    window = cfg.eval.window or cfg.data.seq_len
    return window, cfg.eval.stride or window


hooks.register_module("data", globals())
