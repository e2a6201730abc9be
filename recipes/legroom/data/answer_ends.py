"""The tokens at which an answer ends: those of the model and the tokenizer, and the one of the chat template."""

from collections.abc import Callable
from typing import Any

ANSWER = "answer"  # a text that templates write as it is, and that is in no token of theirs
EXAMPLE = [{"role": "user", "content": "question"}, {"role": "assistant", "content": ANSWER}]


def end_tokens(tokenizer: Any, own: int | list[int] | None, warn: Callable[[str], object]) -> list[int]:
    """The ids of the tokens that end an answer, those of the model first.

    own: eos_token_id of the model's generation configuration. warn: is given why the template does not say where its
    answers end.
    """
    of_model = own if isinstance(own, list) else [own]
    ends = [*of_model, tokenizer.eos_token_id]
    if tokenizer.chat_template is not None:
        ends.append(_end_in_template(tokenizer, warn))
    return [token_id for token_id in dict.fromkeys(ends) if token_id is not None]


def _end_in_template(tokenizer: Any, warn: Callable[[str], object]) -> int | None:
    """The special token that the chat template writes behind an answer, or None."""
    try:
        text = tokenizer.apply_chat_template(EXAMPLE, tokenize=False)
    except Exception as error:  # a template is a program
        warn(
            f"the chat template does not take a short example ({error}): only the tokenizer's own token ends an answer."
        )
        return None
    behind = text.rpartition(ANSWER)[2].strip()
    ids = tokenizer(behind, add_special_tokens=False, split_special_tokens=False)["input_ids"]
    special_ids = {*tokenizer.all_special_ids, *tokenizer.get_added_vocab().values()}
    if ids and ids[0] in special_ids:
        return ids[0]
    return None
