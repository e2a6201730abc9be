"""Tokens that a model of transformers generates, where nothing is computed: all rows run to their greatest length."""

import contextlib
import functools
from typing import Any

import torch
from transformers import GenerationMixin

from legroom.foresight.fake_gpu import known_values
from legroom.foresight.programs.played_code import Decisions, here
from legroom.third_party.patching import patched
from legroom.third_party.transformers_models_private import beams_to_the_end

SPECIAL = ("eos_token_id", "pad_token_id", "bos_token_id", "decoder_start_token_id")
LINES = "transformers/generation/"


def to_the_end(decisions: Decisions) -> contextlib.AbstractContextManager[None]:
    """Inside, what `generate` returns has values: the prompt, where it is known, and behind it one ordinary token. A
    script cuts its rows at the token that ends them, and counts what is left."""
    generate, warnings = vars(GenerationMixin)["generate"], decisions.fake.warnings

    @functools.wraps(generate)
    def generated(model: Any, inputs: torch.Tensor | None = None, *args: Any, **settings: Any) -> Any:
        before = set(warnings)
        with beams_to_the_end(known_values.value_of) as steps:
            found = generate(model, inputs, *args, **settings)
        rows = found if isinstance(found, torch.Tensor) else found.sequences
        if rows.is_floating_point() or known_values.value_of(rows) is not None:  # of a model of speech
            return found
        for line in [line for line in decisions.counts if line.startswith(LINES)]:
            del decisions.counts[line]
        for note in [note for note in warnings if LINES in note and note not in before]:
            del warnings[note]
        warnings[f"{here()}: generate is taken to end no row before its greatest length (max_new_tokens)."] = None
        prompt = inputs if inputs is not None else settings.get("input_ids")
        if model.config.is_encoder_decoder:
            prompt = None
        if steps:  # beams are cut to a length that only a run computes
            rows = rows.new_empty(len(rows), len(steps) + (1 if prompt is None else prompt.shape[1]))
        with decisions.fake.observed_by(None):  # the program has no such tensor
            rows.known_value = _assumed(model, rows, prompt)  # type: ignore[attr-defined]
        if isinstance(found, torch.Tensor):
            return rows
        found.sequences = rows
        return found

    return patched(GenerationMixin, generate=generated)


def _assumed(model: Any, rows: torch.Tensor, prompt: torch.Tensor | None) -> torch.Tensor | None:
    """Values of generated rows. prompt: with which they begin; None: with nothing that is known."""
    if rows.numel() > known_values.MAX_ELEMENTS:
        return None
    named = [getattr(each, name, None) for each in (model.config, model.generation_config) for name in SPECIAL]
    special = {one for each in named for one in (each if isinstance(each, list) else [each])}
    value = torch.full(rows.shape, next(token for token in range(len(special) + 1) if token not in special))
    value = value.to(rows.dtype)
    known = None if prompt is None else known_values.value_of(prompt)
    if known is not None and known.shape[1] <= rows.shape[1] and not len(rows) % len(known):
        value[:, : known.shape[1]] = known.repeat_interleave(len(rows) // len(known), 0)
    return value
