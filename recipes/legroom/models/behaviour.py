"""What a class of transformers does with labels, later tokens and padding: asked of a tiny model of the class.

Some classes for causal language modelling compare the logits of a token with the label of the same token, some see the
tokens after it, and some classifiers read the last position, or mix the padding in. No name of transformers tells. B
rows, T tokens, V vocabulary.
"""

import functools
import json
from dataclasses import dataclass
from typing import Any

import numpy
import torch
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel

from legroom.compat import torch_private, transformers_models_private
from legroom.config import Config
from legroom.data import collate, rows
from legroom.data.dataset import Data
from legroom.errors import Refusal
from legroom.models import architectures, shrunk
from legroom.options.task import OF_ROWS
from legroom.records.printable import printable

# Model types that shift labels, see no later token and are padded on the right, as tests/models/test_behaviour.py
# proves: nothing is asked of them.
KNOWN = {
    *("albert", "bert", "distilbert", "electra", "modernbert", "roberta", "xlm-roberta"),
    *("falcon", "gemma", "gemma2", "gemma3_text", "gpt2", "gpt_neox", "llama", "mistral", "mixtral", "olmo2", "opt"),
    *("phi", "phi3", "qwen2", "qwen3", "qwen3_moe", "smollm3"),
}
TOLERANCE = 1e-5  # of logits and losses in fp32
MOST_PARAMETERS = 40_000_000  # of a model that is asked
SHORT, LONG = 10, 24  # tokens of the rows


@dataclass(frozen=True)
class Behaviour:
    """shifts_labels: the logits of a token are compared with the next label. is_causal: they do not depend on later
    tokens. padding: the side, 'right' or 'left', on which it leaves the logits of a row as they are; None: neither.
    counts_padding: the loss of a language model counts padding where no mask says what it is, as the loss that balances
    experts does. unknown: why no tiny model could be asked; "": it was.
    """

    shifts_labels: bool = True
    is_causal: bool = True
    padding: str | None = "right"
    counts_padding: bool = False
    unknown: str = ""


def of(config: PretrainedConfig, task: str) -> Behaviour:
    """The behaviour of the model that AutoModelFor... builds of a configuration. task: see `architectures.check`."""
    text = config.get_text_config()
    sees_both_ways = getattr(text, "use_bidirectional_attention", False) or not getattr(text, "is_causal", True)
    if config.model_type in KNOWN and not sees_both_ways:
        return Behaviour(counts_padding=bool(getattr(text, "output_router_logits", False)))
    return _of_tiny_model(type(config), json.dumps(config.to_dict(), default=str), task)


@functools.cache
def _of_tiny_model(kind: type[PretrainedConfig], text: str, task: str) -> Behaviour:
    """The behaviour of a small model of a class. text: the configuration as JSON, which can be cached by."""
    values = json.loads(text)
    why = "it would not be tiny"
    for small in (shrunk.shrunk(values), shrunk.shrunk(values, narrow=False), values):
        try:
            with torch_private.without_dispatch_modes(), torch.random.fork_rng(devices=[]):  # in an estimate, too
                model = _tiny_model(kind.from_dict(small), task)
                if model is not None:
                    return ask(model, task)
        except Exception as error:  # sizes that do not fit together end in any of them
            why = f"{type(error).__name__}: {printable(' '.join(str(error).split())[:150])}"
    return Behaviour(unknown=why)


def _tiny_model(config: PretrainedConfig, task: str) -> PreTrainedModel | None:
    """A model of a configuration with random weights in fp32; None if it is not tiny."""
    kind = architectures.model_class(config, task)
    assert kind is not None, "architectures.check refuses it"
    if sum(weight.numel() for weight in architectures.without_memory(kind, config).parameters()) > MOST_PARAMETERS:
        return None
    torch.manual_seed(0)
    return architectures.AUTO_CLASSES[task].from_config(config, dtype=torch.float32)


@torch.no_grad()
def ask(model: PreTrainedModel, task: str) -> Behaviour:
    """The behaviour of a tiny model in fp32; its configuration gets an id of padding. Advances torch's generator."""
    model.eval()
    model.config.use_cache = False
    architectures.set_special_ids(model.config, 0, task)
    ids = _ordinary_ids(model.config)
    drawn = torch.randint(len(ids), (LONG,), generator=torch.Generator().manual_seed(1))
    # Rows of a language model come without mask and positions, which padding on the left would need.
    sides = ("right", "left") if task in OF_ROWS else ("right",)
    padding = None
    for side in sides:
        if _keeps_logits(model, task, ids[drawn], side):
            padding = side
            break
    if task != "language_modelling":
        return Behaviour(padding=padding)

    def changed_at(position: int) -> Tensor:
        """The row with another token at a position, (1, T)."""
        changed = drawn.clone()
        changed[position] = (changed[position] + 1) % len(ids)
        return ids[changed][None]

    row = ids[drawn][None]  # (1, T)
    # Where labels are shifted, nothing predicts the first one.
    loss = _run(model, input_ids=row, labels=row).loss
    loss_of_other_first = _run(model, input_ids=row, labels=changed_at(0)).loss
    # Where the model is causal, the first half does not depend on the second.
    half = LONG // 2
    logits = _run(model, input_ids=row).logits[:, :half]
    logits_before_other = _run(model, input_ids=changed_at(half)).logits[:, :half]
    return Behaviour(
        shifts_labels=_near(loss, loss_of_other_first),
        is_causal=_near(logits, logits_before_other),
        padding=padding,
        counts_padding=_counts_padding(model, ids[drawn]),
    )


def _ordinary_ids(config: PretrainedConfig) -> Tensor:
    """The token ids that stand for nothing special, (N,)."""
    text = config.get_text_config()
    special: set[int | None] = set()
    for name in ("pad", "bos", "eos", "sep"):
        ids = getattr(text, f"{name}_token_id", None)
        special.update(ids if isinstance(ids, list) else [ids])
    vocab = architectures.vocabulary(config) or shrunk.VOCAB
    return torch.tensor([token_id for token_id in range(vocab) if token_id not in special])


def _keeps_logits(model: PreTrainedModel, task: str, ids: Tensor, side: str) -> bool:
    """Whether a row has the same logits alone and beside a longer one, padded on a side. ids: (T,)."""
    short = ids[:SHORT].clone()
    long = ids.clone()
    last = architectures.last_id(model.config, task)
    if last is not None:
        short[-1] = last
        long[-1] = last
    pad_id = model.config.get_text_config().pad_token_id
    batch_of = collate.Padding(1, LONG, pad_id, with_mask=task != "language_modelling", side=side)
    logits_name = "start_logits" if task == "question_answering" else "logits"
    try:
        alone = getattr(_run(model, **batch_of([{"input_ids": short}])), logits_name)[0]
        padded = getattr(_run(model, **batch_of([{"input_ids": short}, {"input_ids": long}])), logits_name)[0]
    except Exception:  # a model that takes no padding on this side
        if side == "right":
            raise
        return False
    if task not in OF_ROWS:
        padded = padded[:SHORT]
    return _near(alone, padded)


def _counts_padding(model: PreTrainedModel, ids: Tensor) -> bool:
    """Whether a language model's loss of rows padded on the right is another one with a mask. ids: (T,)."""
    rows = [{"input_ids": row, "labels": row} for row in (ids[:SHORT], ids)]
    batch = collate.Padding(1, LONG, model.config.get_text_config().pad_token_id, with_mask=True)(rows)
    try:
        masked = _run(model, **batch).loss
    except Exception:  # a class that takes no mask
        return False
    del batch["attention_mask"]
    return not _near(masked, _run(model, **batch).loss)


def _run(model: PreTrainedModel, **inputs: Tensor) -> Any:
    """A forward pass. Some models draw random numbers in it in any mode, the same ones each time here."""
    torch.manual_seed(0)
    return model(**inputs)


def _near(one: Tensor, other: Tensor) -> bool:
    return bool(((one - other).abs() <= TOLERANCE).all())


# --- what follows from it -------------------------------------------------------------------------


def check(cfg: Config, name: str, config: PretrainedConfig, task: str) -> tuple[Behaviour, list[str]]:
    """(the behaviour, warnings about it, a line each). name: of the model, as it was typed.

    Raises Refusal for a language model that sees the tokens it is to predict.
    """
    kind = architectures.model_class(config, task)
    assert kind is not None, "architectures.check refuses it"
    if task == "language_modelling" and transformers_models_private.is_encoder(config):
        behaviour = Behaviour(is_causal=False)
    else:
        behaviour = of(config, task)
    if not behaviour.is_causal:
        raise Refusal(
            f"{name} ({config.model_type}, {kind.__name__}) sees the tokens that data={cfg.data.name} asks it to "
            "predict: it is an encoder, or made for another loss. Choose the weights of a decoder."
        )
    if behaviour.unknown:
        what = "pads" if task != "language_modelling" else "shifts labels, sees later tokens, and pads"
        return behaviour, [
            f"{name}: whether {kind.__name__} {what} as it should could not be asked of a tiny model "
            f"({behaviour.unknown}), and is assumed."
        ]
    if behaviour.shifts_labels:
        return behaviour, []
    return behaviour, [
        f"{kind.__name__} in transformers compares the logits of each token with the label of the same token: the loss "
        "here is that of the next token, as of all language models."
    ]


def pad(name: str, config: PretrainedConfig, data: Data, behaviour: Behaviour) -> list[str]:
    """Gives the model an id of padding, and has rows of different lengths padded as it needs it. Returns warnings.

    Raises Refusal for rows of different lengths where padding on either side changes the logits.
    """
    padding = data.collate
    pad_id_before = getattr(config, "pad_token_id", None)
    if data.task in OF_ROWS or (isinstance(padding, collate.Padding) and data.task != "language_modelling"):
        # the head, or its positions, may look for the padding by its id
        architectures.set_special_ids(config, data.pad_token_id, data.task)
    if not isinstance(padding, collate.Padding):
        return []
    lines = []
    kind = architectures.model_class(config, data.task)
    assert kind is not None, "architectures.check refuses it"
    if data.task == "language_modelling":
        if behaviour.counts_padding:
            padding.with_mask = True
    else:
        padding.pad_token_id = config.get_text_config().pad_token_id
        if pad_id_before is not None and pad_id_before == architectures.last_id(config, data.task):
            lines.append(
                f"{name} pads with its end token ({pad_id_before}), at which {kind.__name__} reads a row: padded with "
                f"{padding.pad_token_id} instead, and saved so."
            )
    if behaviour.padding is not None:
        padding.side = behaviour.padding
        if behaviour.padding == "left":
            lines.append(f"rows are padded on the left, as {kind.__name__} needs it.")
        return lines
    lengths = numpy.concatenate([rows.lengths(part) for part in (data.train, data.eval) if part is not None])
    longest = padding.length(int(lengths.max()))
    if padding.length(int(lengths.min())) == longest:
        return lines
    raise Refusal(
        f"{name} ({kind.__name__}): padding changes what it computes, and the rows have {lengths.min()} to "
        f"{lengths.max()} tokens. Type data.pad_to_multiple_of={longest}, which pads them all to the same length, or "
        "choose another model."
    )
