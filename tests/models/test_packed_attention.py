"""data.packing: a packed sample has the logits that it has alone, in every family that is allowed.

B rows, T tokens.
"""

from __future__ import annotations

import pytest
import torch
from conftest import compose, small
from transformers import AutoConfig

from recipes.errors import Refusal
from recipes.models import packing, tiny

LENGTHS = [7, 1, 12, 5]
PADDING = 3
LM = "language_modelling"


def wide_apart(kind: str, attention: str) -> torch.nn.Module:
    """A tiny model whose logits depend much on what a token sees."""
    model = tiny.tiny_model(kind, LM)
    model.set_attn_implementation(attention)
    model.config.use_cache = False
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(5 if weight.dim() > 1 else 1)
    return model.eval()


@pytest.mark.parametrize("attention", packing.MASKED)
@pytest.mark.parametrize("kind", packing.FAMILIES)
def test_a_packed_sample_has_the_logits_that_it_has_alone(kind, attention):
    model = wide_apart(kind, attention)
    torch.manual_seed(1)
    samples = [torch.randint(100, 500, (1, length)) for length in LENGTHS]
    row = torch.cat([*samples, torch.zeros(1, PADDING, dtype=torch.long)], 1)
    positions = torch.cat([*map(torch.arange, LENGTHS), torch.zeros(PADDING, dtype=torch.long)])[None]
    with torch.no_grad():
        alone = torch.cat([model(input_ids=sample).logits for sample in samples], 1)
        packing.keep_samples_apart(model)
        packed = model(input_ids=row, position_ids=positions).logits[:, : sum(LENGTHS)]
        joined = model(input_ids=row).logits[:, : sum(LENGTHS)]
    assert packed == pytest.approx(alone, abs=1e-5, rel=1e-5)
    assert (joined - alone).abs().max() > 0.1  # so that the comparison can fail


def test_the_mask_hides_other_samples_and_later_tokens():
    mask = packing.mask(torch.tensor([[0, 1, 0, 0], [0, 1, 2, 3]]), torch.float32)
    assert mask.shape == (2, 1, 4, 4)
    seen = [[[key for key in range(4) if not mask[row, 0, query, key]] for query in range(4)] for row in range(2)]
    assert seen == [[[0], [0, 1], [2], [3]], [[0], [0, 1], [0, 1, 2], [0, 1, 2, 3]]]


@pytest.mark.parametrize(
    "kind,values,words",
    [
        ("bloom", {}, "bloom"),
        ("opt", {}, "opt"),
        ("mistral", {"sliding_window": 16}, "data.seq_len=16 or less"),
        ("qwen2", {"layer_types": ["chunked_attention"], "num_hidden_layers": 1}, "window"),
        ("mixtral", {"output_router_logits": True}, "output_router_logits"),
    ],
)
def test_a_model_whose_samples_would_see_each_other_is_refused(kind, values, words):
    cfg = compose(*small("model=llama_tiny", "data=chat", "data.path=x", "data.packing=true")).cfg
    with pytest.raises(Refusal, match="data.packing=") as caught:
        packing.check(cfg, "model.pretrained=x", AutoConfig.for_model(kind, **values), LM)
    assert words in str(caught.value)


def test_a_window_as_long_as_a_row_hides_nothing():
    cfg = compose(*small("model=llama_tiny", "data=chat", "data.path=x", "data.packing=true")).cfg
    packing.check(cfg, "model.pretrained=x", AutoConfig.for_model("mistral", sliding_window=32), LM)


def test_a_classifier_is_refused():
    cfg = compose(*small("model=llama_tiny", "data=chat", "data.path=x", "data.packing=true")).cfg
    with pytest.raises(Refusal, match="classifier"):
        packing.check(cfg, "model.pretrained=x", AutoConfig.for_model("llama"), "classification")


def test_attention_without_a_mask_is_refused():
    model = wide_apart("llama", "sdpa")
    model.config._attn_implementation = "flex_attention"
    with pytest.raises(Refusal, match="flex_attention"):
        packing.keep_samples_apart(model)
