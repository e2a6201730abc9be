"""data.tokenizer=bytes as a tokenizer of transformers, so that a saved model brings it: `AutoTokenizer` opens it."""

from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from legroom.options.data_sources import BYTE_VOCAB

END = "<|end|>"  # token 0


def _characters() -> list[str]:
    """The character by which `pre_tokenizers.ByteLevel` writes each byte: itself if it can be printed, else one from
    256 on (the rule of GPT-2's tokenizer)."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


VOCABULARY = {END: 0} | {character: byte + 1 for byte, character in enumerate(_characters())}
assert len(VOCABULARY) == BYTE_VOCAB


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """The tokenizer whose id of byte b is b + 1. Token 0 ends a text, separates a pair, and pads."""
    tokenizer = Tokenizer(models.BPE(vocab=VOCABULARY, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A", pair=f"$A {END} $B", special_tokens=[(END, 0)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=END,
        model_input_names=["input_ids", "attention_mask"],
        split_special_tokens=True,  # a text that has the characters of END in it is bytes like any other
        clean_up_tokenization_spaces=False,
    )


def is_byte_tokenizer(tokenizer: Any) -> bool:
    """Whether a loaded tokenizer is the one of `byte_tokenizer`."""
    return tokenizer.get_vocab() == VOCABULARY
