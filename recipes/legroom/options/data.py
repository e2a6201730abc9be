"""data: checks of files and lengths, and the entries for TrainingArguments."""

from collections.abc import Collection
from typing import Any

from legroom import paths
from legroom.config import Config
from legroom.errors import Refusal
from legroom.options import data_sources, hooks, task
from legroom.options.data_sources import BYTE_VOCAB
from legroom.records import saved_model

MADE = ("dummy", "source")  # rows that are made, as many as are asked for; of other data null means all rows
ANY_TASK = ("chat", *task.OF_TOKENS, *task.OF_ROWS, "question_answering")  # of files and data sets of any kind
CONVERSATION_KEYS = (
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
# Keys of config.json by which a model of images or of audio is known.
OTHER_INPUTS = {"image_size", "num_mel_bins", "feat_extract_norm", "conv_dim"}
# Files of which a folder has at least one if it holds a tokenizer.
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "vocab*", "*.model", "*.bpe", "*.tiktoken", "tekken.json")


def resolve(cfg: Config) -> list[str]:
    """Fills in the tokenizer: the one that pretrained weights bring, bytes for the models of the menu."""
    if cfg.data.kind in data_sources.TEXTS and cfg.data.tokenizer is None:
        cfg.data.tokenizer = cfg.model.pretrained or "bytes"
    return []


def problems(cfg: Config, given: Collection[str] = ()) -> list[str]:
    """Files that do not exist or do not suit the task, keys that nothing reads, vocabularies too small for bytes."""
    first = _tokenizer_problems(cfg) + _encoding_problems(cfg) + _vocabulary_problems(cfg)
    missing = _missing_or_wrong_task(cfg)
    if missing is not None:  # nothing more can be said of data that is not named
        return [*first, missing]
    return [
        *first,
        *_hub_problems(cfg),
        *_ignored_keys(cfg, given),
        *_template_problems(cfg),
        *_file_problems(cfg),
        *_group_problems(cfg),
        *_mask_problems(cfg),
    ]


def _vocabulary_problems(cfg: Config) -> list[str]:
    """A model from sizes whose vocabulary is too small for bytes."""
    in_bytes = cfg.data.kind == "source" or cfg.data.tokenizer == "bytes"
    if not in_bytes or cfg.model.pretrained or cfg.model.vocab >= BYTE_VOCAB:
        return []
    return [f"model.vocab={cfg.model.vocab} is too small for bytes, which need {BYTE_VOCAB}. Type model.vocab=512."]


def _missing_or_wrong_task(cfg: Config) -> str | None:
    """Data that is not named, or that cannot have the task; None where both are right."""
    data = cfg.data
    if data.kind in MADE and data.samples is None:
        return f"data={data.name} needs a number of sequences, not data.samples=null. Type data.samples=512."
    if data.kind in data_sources.OWN_FILES and data.path is None and not are_not_named(cfg):
        kinds = ".jsonl, .json, .parquet or .csv" if data.kind == "chat" else ".txt, .jsonl, .csv or .parquet"
        return f"data={data.name} needs data.path=: {kinds}, a file, a folder or a pattern."
    if data.kind == "text" and data.task == "chat":
        return "data.task=chat with data=text: type data=chat, which reads conversations from files."
    if data.kind in task.TASKS:
        possible = task.TASKS[data.kind]
    elif data.kind == "dummy":
        possible = tuple(name for name in ANY_TASK if name != "chat")
    else:
        possible = ANY_TASK
    if data.task is not None and data.task not in possible:
        return f"data.task={data.task} with data={data.name}: its rows are for {', '.join(possible)} alone."
    return None


def are_not_named(cfg: Config) -> bool:
    """Whether an estimate is asked before the files of its rows are: it needs their lengths alone, and takes random
    rows of data.seq_len tokens for them."""
    return cfg.predicts and are_to_be_named(cfg)


def are_to_be_named(cfg: Config) -> bool:
    """Whether the rows are a person's files, which data.path= does not name yet."""
    return cfg.data.kind in data_sources.OWN_FILES and cfg.data.path is None


def _ignored_keys(cfg: Config, given: Collection[str]) -> list[str]:
    """Keys that were typed and that these rows do not use. The task of pretrained weights may be open (None)."""
    data = cfg.data
    row_task = task.task(cfg)
    has_conversations = task.has_conversations(cfg)
    unused = []
    if has_conversations or row_task == "question_answering":
        unused.append("data.text_column")
    if row_task is not None and row_task not in task.OF_ROWS:
        unused += ["data.label_column", "data.pair_column"]
    if not has_conversations:
        unused += CONVERSATION_KEYS
    lines = []
    for key in unused:
        if key in given:
            lines.append(f"{key} would be ignored: data.task={data.task or row_task} has no use for it. Leave it out.")
    if "data.eval_fraction" in given and data.eval_fraction and (data.eval_path or data.eval_split):
        lines.append("data.eval_fraction would be ignored: the rows to evaluate on are named. Leave it out.")
    return lines


def _template_problems(cfg: Config) -> list[str]:
    """data.template_arguments that are no variables of a chat template."""
    typed = cfg.data.template_arguments
    if typed is None:
        return []
    if not isinstance(typed, dict):
        return [
            f"data.template_arguments={typed} is no mapping of names to values. Type it as "
            "'data.template_arguments={enable_thinking: false}'."
        ]
    lines = []
    for name in typed:
        if name in GIVEN_TO_TEMPLATES:
            lines.append(
                f"data.template_arguments: {name} is no variable of a template, but what Legroom gives to it. Leave it "
                "out."
            )
    return lines


def _file_problems(cfg: Config) -> list[str]:
    """Files that do not exist, or whose kind cannot hold what is trained on."""
    data = cfg.data
    lines = []
    for key, value in (("data.path", data.path), ("data.eval_path", data.eval_path)):
        if value is None:
            continue
        try:
            if data.kind in data_sources.PUBLISHED:
                data_sources.splits(data.kind, value)
            elif data.kind in data_sources.OWN_FILES:
                kind = data_sources.kind(data_sources.find(value, key)[0])
                lines += _kind_problems(cfg, kind, f"{key}={value}")
        except Refusal as refusal:
            lines.append(str(refusal))
    return lines


def _kind_problems(cfg: Config, kind: str, typed: str) -> list[str]:
    """Why files of a kind cannot be used as asked. kind: their suffix. typed: the key and the value that name them."""
    data = cfg.data
    lines = []
    if kind == ".txt":
        lines += _txt_problems(cfg, typed)
    elif data.documents:
        lines.append(not_documents(data.documents, f"{typed} ({kind})"))
    if data.separator and kind not in (".csv", ".tsv"):
        lines.append(f"data.separator={data.separator} is for .csv and .tsv files: {typed}. Leave it out.")
    if data.encoding and kind == ".parquet":
        lines.append(f"data.encoding={data.encoding} is for text files, and {typed} is none. Leave it out.")
    return lines


def not_documents(documents: str, source: str) -> str:
    """The message about data.documents for rows that are no plain text. source: what these rows are."""
    return f"data.documents={documents} is for .txt files, and of {source} each row is a document. Leave it out."


def _hub_problems(cfg: Config) -> list[str]:
    """A data set that is not named, or whose folder does not exist. The hub itself is asked later."""
    data = cfg.data
    if data.kind != "hub":
        return []
    if data.path is None:
        return ["data=hub needs data.path=: an id such as stanfordnlp/imdb, or a folder of data sets."]
    is_folder_name = data.path.count("/") > 1 or data.path.startswith((".", "/", "~"))
    if is_folder_name and not paths.expanded(data.path).exists():
        return [f"data.path={data.path}: there is no such folder."]
    return []


def _txt_problems(cfg: Config, typed: str) -> list[str]:
    """Why a .txt file cannot be used as asked. typed: the key that names it, with its value."""
    data = cfg.data
    row_task = task.task(cfg)
    if data.kind == "chat":
        return [
            f"data=chat: a .txt file has no conversations: {typed}. Give a .jsonl file with {data.messages_column} in "
            "each line, or type data=text."
        ]
    if row_task == "question_answering":
        return [f"data.task={data.task}: a .txt file has no questions: {typed}. Give a .jsonl, .json or .parquet file."]
    if row_task not in task.OF_ROWS:
        return []
    chosen = f"data.task={data.task}" if data.task else f"model={cfg.model.name} with data.task=null"
    return [
        f"{chosen} needs labels, and a .txt file has none: {typed}. Give a .jsonl, "
        f".csv or .parquet file with the columns {data.text_column} and {data.label_column}."
    ]


def _mask_problems(cfg: Config) -> list[str]:
    """Keys of masks where nothing is masked."""
    if task.task(cfg) == "masked_lm":
        return []
    typed = []
    if cfg.data.mask_share:
        typed.append(f"data.mask_share={cfg.data.mask_share}")
    if cfg.data.whole_words:
        typed.append(f"data.whole_words={cfg.data.whole_words}")
    if not typed:
        return []
    return [f"{' and '.join(typed)}: for data.task=masked_lm alone. Type it, or leave the key out."]


def _group_problems(cfg: Config) -> list[str]:
    """data.group_by_length where all rows have one length."""
    all_of_one_length = task.task(cfg) in task.OF_TOKENS and not task.has_conversations(cfg)
    if cfg.data.group_by_length and all_of_one_length:
        return [even_rows(cfg)]
    return []


def even_rows(cfg: Config) -> str:
    """The message about data.group_by_length for a stream of texts, whose rows all have one length."""
    return (
        f"data.group_by_length=true: the rows of data={cfg.data.name} are blocks of data.seq_len={cfg.data.seq_len} "
        "tokens, all of one length. Leave it out."
    )


def _tokenizer_problems(cfg: Config) -> list[str]:
    """A folder of pretrained weights without a tokenizer, where its tokenizer is the one to be used."""
    pretrained = cfg.model.pretrained
    if not pretrained or cfg.data.tokenizer != pretrained:
        return []
    folder = paths.expanded(pretrained)
    if not (folder / "config.json").is_file():
        return []  # a folder without a model is refused with model.pretrained; the hub is asked later
    if any(any(folder.glob(name)) for name in TOKENIZER_FILES):
        return []
    if OTHER_INPUTS & saved_model.settings(folder / "config.json").keys():
        return []  # a model of images or of audio is refused once its class is known
    return [
        f"model.pretrained={pretrained} brings no tokenizer, so the ids that its weights were trained on are not "
        "known. Save the tokenizer into the folder (tokenizer.save_pretrained), or name it with data.tokenizer=."
    ]


def _encoding_problems(cfg: Config) -> list[str]:
    """An encoding that Python does not know, and keys of files where there are none."""
    data = cfg.data
    lines = []
    if data.encoding is not None:
        try:
            "".encode(data.encoding)
        except (LookupError, ValueError):
            lines.append(f"data.encoding={data.encoding} is no encoding of texts. Type utf-8, latin-1 or another one.")
    if data.kind in data_sources.PUBLISHED and data.path is None and data.separator is not None:
        lines.append(f"data.separator={data.separator} is for files of your own. Give data.path=, or leave it out.")
    return lines


def warnings(cfg: Config) -> list[str]:
    """Batch sizes and lengths that leave part of a GPU's matrix units idle: no multiple of 8, and not 1, 2 or 4."""
    sizes = {"batch.per_device": cfg.batch.per_device, "data.seq_len": cfg.data.seq_len}
    uneven = [f"{key}={size}" for key, size in sizes.items() if size % 8 != 0 and size not in (1, 2, 4)]
    if not uneven:
        return []
    return [f"{', '.join(uneven)}: not a multiple of 8, which leaves part of a GPU's matrix units idle."]


def training_arguments(cfg: Config) -> dict[str, Any]:
    """Entries for TrainingArguments."""
    return {
        "dataloader_pin_memory": cfg.data.pin_memory and cfg.target.on_gpu,
        "dataloader_num_workers": cfg.data.workers,
        "dataloader_persistent_workers": cfg.data.workers > 0,
        "accelerator_config": {"non_blocking": cfg.target.on_gpu},
    }


def window_and_stride(cfg: Config) -> tuple[int, int]:
    """(tokens in a window of the evaluation, tokens by which the window moves)."""
    window = cfg.eval.window or cfg.data.seq_len
    stride = cfg.eval.stride or window
    return window, stride


hooks.register_module("data", globals())
