"""Chat templates of the kinds that models bring, on a tokenizer of bytes with special tokens."""

from __future__ import annotations

import json
from pathlib import Path

from legroom.data.byte_tokenizer import byte_tokenizer

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
HEADERS = (  # as Llama 3: a token at the beginning, contents trimmed
    "<|begin|>{% for m in messages %}<|im_start|>{{ m['role'] }}<|im_end|>\n\n{{ m['content'] | trim }}<|eot|>"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant<|im_end|>\n\n{% endif %}"
)
THOUGHTS = (  # as Qwen 3: the last answer has a block of thoughts, earlier ones have none
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{% if m['role'] == 'assistant' and loop.last %}<think>\n\n</think>\n\n{% endif %}{{ m['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
COUNTED = "{{ messages | length }} messages\n" + CHATML  # the beginning depends on what comes later
ALTERNATING = (  # as Mistral: no system prompt, users and assistants in turn
    "<|begin|>{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate user/assistant') }}{% endif %}"
    "{% if m['role'] == 'user' %}[INST] {{ m['content'] }} [/INST]{% else %} {{ m['content'] }}<|eot|>{% endif %}"
    "{% endfor %}"
)
MARKED = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{% if m['role'] == 'assistant' %}"
    "{% generation %}{{ m['content'] }}<|im_end|>{% endgeneration %}\n"
    "{% else %}{{ m['content'] }}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL = ["<|im_start|>", "<|im_end|>", "<|begin|>", "<|eot|>"]


def save_tokenizer(folder: Path, template: str | None) -> Path:
    """Saves a tokenizer of bytes and SPECIAL with a chat template. Returns the folder."""
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": SPECIAL})
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    return folder


def talk(*turns: str, system: str | None = None) -> dict:
    """A row: the user begins, and the assistant answers."""
    roles = ["user", "assistant"] * len(turns)
    messages = [{"role": role, "content": turn} for role, turn in zip(roles, turns)]
    return {"messages": ([{"role": "system", "content": system}] if system is not None else []) + messages}


def write(path: Path, rows: list[dict]) -> Path:
    """Rows as a .jsonl file. Returns its path."""
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    return path


# Prompts for an answer that end otherwise than answers begin.
OPENS_THOUGHT = (  # as DeepSeek R1: the prompt opens a thought, and a plain answer has none
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
)
SWITCHED_THOUGHT = (  # as Nemotron 3 and Qwen 3.5: a variable says whether the prompt opens a thought or closes it
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{% if m['role'] == 'assistant' %}"
    "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n{% else %}<think></think>{% endif %}"
    "{% endif %}{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and enable_thinking %}<think>\n{% else %}<think></think>{% endif %}{% endif %}"
)
CHANNELS = (  # as Gemma 4: without thoughts the prompt closes an empty channel, which no answer has
    "{% for m in messages %}<|begin|>{{ 'model' if m['role'] == 'assistant' else m['role'] }}\n"
    "{{ m['content'] | trim }}<|eot|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|begin|>model\n<|im_start|>thought\n<|im_end|>{% endif %}"
)
PARTS = (  # as models of images: of a content that is a text nothing is written
    "{% for m in messages %}{{ m['role'] }}: {% for part in m['content'] %}{% if part['type'] == 'text' %}"
    "{{ part['text'] }}{% endif %}{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
