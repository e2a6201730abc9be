"""The tokens at which an answer ends: those of the model and the tokenizer, and the one of the chat template."""

from collections.abc import Callable
from typing import Any

ANSWER = "answer"  # that a template writes, and no token of its own holds
TALK = [{"role": "user", "content": "question"}, {"role": "assistant", "content": ANSWER}]


def end_tokens(tokenizer: Any, own: int | list[int] | None, warn: Callable[[str], object]) -> list[int]:
    """Their ids, the model's first. own: eos_token_id of its generation configuration. warn: is given why the template
    does not say where its answers end."""
    found = [*(own if isinstance(own, list) else [own]), tokenizer.eos_token_id]
    if tokenizer.chat_template is not None:
        behind = ""
        try:
            behind = tokenizer.apply_chat_template(TALK, tokenize=False).rpartition(ANSWER)[2].strip()
        except Exception as error:  # a template is a program
            why = f"the chat template does not take a short example ({error})"
            warn(f"{why}: only the tokenizer's own token ends an answer.")
        known = {*tokenizer.all_special_ids, *tokenizer.get_added_vocab().values()}
        ids = tokenizer(behind, add_special_tokens=False, split_special_tokens=False)["input_ids"]
        found += [each for each in ids[:1] if each in known]
    return [each for each in dict.fromkeys(found) if each is not None]
