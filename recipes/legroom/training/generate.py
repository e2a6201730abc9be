"""Short continuations of evaluation rows, before and after a training (eval.generate)."""

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from legroom.config.menus import TYPES
from legroom.data import answer_ends
from legroom.data.collate import IGNORE_INDEX
from legroom.data.dataset import Data
from legroom.ranks import collectives

TOKENS = 48  # of a continuation
DRAWN = {"do_sample": True, "temperature": 0.7}  # of texts: the likeliest token again and again says little


def continuations(
    model: Any, data: Data, count: int, warn: Callable[[str], None], autocast: str | None = None
) -> list[tuple[str, str]]:
    """(prompt, continuation) of the first rows to evaluate on, on rank 0; on other ranks none. An answer is greedy, a
    text is drawn with a seed of its own.

    model: without wrappers, its weights those to evaluate. Where it cannot generate, warn is given why, and there are
    none. autocast: the type of the passes under autocast, or None. A model with an adapter generates by the forward
    pass of its base, around which Accelerate has put no autocast.
    """
    if collectives.rank_index() != 0:
        return []
    was_training = model.training
    model.eval()
    texts = []
    try:
        with torch.no_grad(), torch.compiler.set_stance("force_eager"), torch.random.fork_rng():
            torch.manual_seed(0)
            ends = answer_ends.end_tokens(data.tokenizer, model.generation_config.eos_token_id, warn)
            with _passes(model, autocast):
                for index in range(min(count, len(data.eval))):
                    prompt, asks = _prompt(data.eval[index])
                    texts.append(_continued(model, data.tokenizer, ends, prompt, asks))
        return texts
    except Exception as error:  # whatever an architecture raises; the training is worth more than a look at it
        reason = str(error).partition("\n")[0]
        warn(f"eval.generate: the model generates nothing ({type(error).__name__}: {reason})")
        return []
    finally:
        model.train(was_training)


def _passes(model: Any, autocast: str | None) -> AbstractContextManager[Any]:
    """Autocast to a type, which is one of `TYPES`; nothing where it is None."""
    if autocast is None:
        return contextlib.nullcontext()
    return torch.autocast(model.device.type, getattr(torch, TYPES[autocast]))


def _prompt(row: dict[str, torch.Tensor]) -> tuple[list[int], bool]:
    """(tokens to continue, whether they ask for an answer): of a conversation the tokens before its first answer, of a
    text its first half."""
    ids = row["input_ids"].tolist()
    has_label = (row["labels"] != IGNORE_INDEX).tolist()
    first = has_label.index(True, 1)
    if first == 1:  # every token of a text is trained
        return ids[: max(1, len(ids) // 2)], False
    return ids[:first], True


def _continued(model: Any, tokenizer: Any, ends: list[int], prompt: list[int], asks: bool) -> tuple[str, str]:
    new_tokens = TOKENS
    limit = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if limit is not None:
        new_tokens = min(TOKENS, limit // 2)
        prompt = prompt[-(limit - new_tokens) :]
    settings: dict[str, Any] = {"do_sample": False} if asks else dict(DRAWN)
    if ends:
        settings["eos_token_id"] = ends
    ids = torch.tensor([prompt], device=model.device)
    generated = model.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=new_tokens,
        use_cache=True,
        pad_token_id=ends[0] if ends else 0,
        **settings,
    )[0].tolist()
    return tokenizer.decode(prompt), tokenizer.decode(generated[len(prompt) :], skip_special_tokens=True)
