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
    both_ways = getattr(text, "use_bidirectional_attention", False) or not getattr(text, "is_causal", True)
    if config.model_type in KNOWN and not both_ways:
        return Behaviour(counts_padding=bool(getattr(text, "output_router_logits", False)))
    return _asked(type(config), json.dumps(config.to_dict(), default=str), task)


@functools.cache
def _asked(kind: type[PretrainedConfig], text: str, task: str) -> Behaviour:
    """text: the configuration as JSON."""
    values, why = json.loads(text), "it would not be tiny"
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
    text = model.config.get_text_config()
    special = [getattr(text, f"{name}_token_id", None) for name in ("pad", "bos", "eos", "sep")]
    avoided = {number for each in special for number in (each if isinstance(each, list) else [each])}
    vocab = architectures.vocabulary(model.config) or shrunk.VOCAB
    ids = torch.tensor([number for number in range(vocab) if number not in avoided])
    drawn = torch.randint(len(ids), (LONG,), generator=torch.Generator().manual_seed(1))
    # Rows of a language model come without mask and positions, which padding on the left would need.
    sides = ("right", "left") if task in OF_ROWS else ("right",)
    padding = next((side for side in sides if _keeps_logits(model, task, ids[drawn], side)), None)
    if task != "language_modelling":
        return Behaviour(padding=padding)

    def other(position: int) -> Tensor:
        """The row with another token at a position, (1, T)."""
        changed = drawn.clone()
        changed[position] = (changed[position] + 1) % len(ids)
        return ids[changed][None]

    row = ids[drawn][None]
    losses = [_run(model, input_ids=row, labels=labels).loss for labels in (row, other(0))]
    before, after = (_run(model, input_ids=each).logits[:, : LONG // 2] for each in (row, other(LONG // 2)))
    return Behaviour(_near(*losses), _near(before, after), padding, _counts_padding(model, ids[drawn]))


def _keeps_logits(model: PreTrainedModel, task: str, ids: Tensor, side: str) -> bool:
    """Whether a row has the same logits alone and beside a longer one, padded on a side. ids: (T,)."""
    last = architectures.last_id(model.config, task)
    rows = [ids[:SHORT].clone(), ids.clone()]
    for row in rows:
        row[-1] = row[-1] if last is None else last
    pad = model.config.get_text_config().pad_token_id
    batch = collate.Padding(1, LONG, pad, task != "language_modelling", side)
    try:
        outputs = [_run(model, **batch([{"input_ids": row} for row in part])) for part in (rows[:1], rows)]
        alone, beside = (each.start_logits if task == "question_answering" else each.logits for each in outputs)
    except Exception:  # as much as another result
        if side == "right":
            raise
        return False
    return _near(alone[0], beside[0] if task in OF_ROWS else beside[0, :SHORT])


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
    """(the behaviour, what it makes different, a line each). name: of the model, as it was typed.

    Raises Refusal for a language model that sees the tokens it is to predict.
    """
    kind = architectures.model_class(config, task)
    assert kind is not None, "architectures.check refuses it"
    sees_all = task == "language_modelling" and transformers_models_private.is_encoder(config)
    found = Behaviour(is_causal=False) if sees_all else of(config, task)
    if not found.is_causal:
        raise Refusal(
            f"{name} ({config.model_type}, {kind.__name__}) sees the tokens that data={cfg.data.name} asks it to "
            "predict: it is an encoder, or made for another loss. Choose the weights of a decoder."
        )
    if found.unknown:
        asked = "pads" if task != "language_modelling" else "shifts labels, sees later tokens, and pads"
        return found, [
            f"{name}: whether {kind.__name__} {asked} as it should could not be asked of a tiny model "
            f"({found.unknown}), and is assumed."
        ]
    if found.shifts_labels:
        return found, []
    return found, [
        f"{kind.__name__} in transformers compares the logits of each token with the label of the same token: the loss "
        "here is that of the next token, as of all language models."
    ]


def pad(name: str, config: PretrainedConfig, data: Data, found: Behaviour) -> list[str]:
    """Give the model an id of padding, and let rows of different lengths be padded as it needs it. Returns what is
    said about it.

    Raises Refusal for rows of different lengths where padding on either side changes the logits.
    """
    padding, before, said = data.collate, getattr(config, "pad_token_id", None), []
    if data.task in OF_ROWS or (isinstance(padding, collate.Padding) and data.task != "language_modelling"):
        # the head, or its positions, may look for the padding by its id
        architectures.set_special_ids(config, data.pad_token_id, data.task)
    if not isinstance(padding, collate.Padding):
        return []
    if data.task == "language_modelling" and found.counts_padding:
        padding.with_mask = True
    kind = architectures.model_class(config, data.task)
    assert kind is not None, "architectures.check refuses it"
    if data.task != "language_modelling":
        padding.pad_token_id = config.get_text_config().pad_token_id
        if before is not None and before == architectures.last_id(config, data.task):
            said = [
                f"{name} pads with its end token ({before}), at which {kind.__name__} reads a row: padded with "
                f"{padding.pad_token_id} instead, and saved so."
            ]
    if found.padding is not None:
        padding.side = found.padding
        return said + [f"rows are padded on the left, as {kind.__name__} needs it."] * (found.padding != "right")
    lengths = numpy.concatenate([rows.lengths(part) for part in (data.train, data.eval) if part is not None])
    shortest, longest = (padding.length(int(most)) for most in (lengths.min(), lengths.max()))
    if shortest == longest:
        return said
    raise Refusal(
        f"{name} ({kind.__name__}): padding changes what it computes, and the rows have {lengths.min()} to "
        f"{lengths.max()} tokens. Type data.pad_to_multiple_of={longest}, which pads them all to the same length, or "
        "choose another model."
    )
