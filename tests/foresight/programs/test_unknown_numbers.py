"""Integers that nobody computed: generation that must end, and figures of an evaluation before the first step."""

from __future__ import annotations

import pytest
import torch
from played_scripts import play

from legroom import Refusal
from legroom.foresight.fake_gpu import known_values
from legroom.foresight.fake_gpu.unknown_numbers import UnknownInt
from legroom.foresight.programs import played_code
from legroom.foresight.programs.played_device import PlayedDevice

GENERATES = """
import torch
from transformers import LlamaConfig, LlamaForCausalLM
sizes = dict(hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, vocab_size=64)
model = LlamaForCausalLM(LlamaConfig(**sizes, eos_token_id=2, pad_token_id=0)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while True:
    prompts = torch.full((2, 5), 7).cuda()
    rows = model.generate(prompts, attention_mask=torch.ones_like(prompts), max_new_tokens=8, {settings})
    assert rows.shape == (2, 13) and rows[:, :5].tolist() == [[7] * 5] * 2
    ended = rows == 2
    ends = torch.full((2,), rows.shape[1], device="cuda")
    ends[ended.any(1)] = ended.int().argmax(1)[ended.any(1)]
    kept = torch.arange(rows.shape[1], device="cuda").expand(2, -1) < ends[:, None]
    assert [len(row[mask].tolist()) for row, mask in zip(rows, kept)] == [13, 13]
    model(rows, labels=rows).loss.backward()
    optimizer.step()
"""
EVALUATES = """
import torch
from torch import nn
model = nn.Sequential(nn.Embedding(20, 32), nn.Linear(32, 20)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.arange(24).view(4, 6).remainder(20).cuda()
{read}
while True:
    nn.functional.cross_entropy(model(x).flatten(0, 1), x.flatten()).backward()
    optimizer.step()
"""


@pytest.mark.parametrize("settings", ["do_sample=False", "do_sample=True, top_k=4", "num_beams=3, do_sample=False"])
def test_generation_runs_to_its_greatest_length_and_ends(tmp_path, settings):
    found = play(tmp_path, GENERATES.format(settings=settings))
    assert [note for note in found.notes if "script.py:9: generate is taken to end no row" in note]
    assert not [note for note in found.notes if "decides" in note]


FORMS = """
prompts = torch.full((2, 5), 7).cuda()
from transformers import T5Config, T5ForConditionalGeneration
one = model.generate(prompts[:1], max_new_tokens=3, do_sample=True, num_return_sequences=2)
assert one[1].tolist() == [7] * 5 + [3] * 3, "the first token that is not special"
found = model.generate(input_ids=prompts, max_new_tokens=3, return_dict_in_generate=True, do_sample=False)
assert found.sequences.tolist() == [[7] * 5 + [3] * 3] * 2
unknown = model.generate(torch.randint(0, 9, (2, 5), device="cuda"), max_new_tokens=2, do_sample=False)
assert unknown.tolist() == [[3] * 7] * 2
sizes = dict(d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, vocab_size=64, decoder_start_token_id=0)
other = T5ForConditionalGeneration(T5Config(**sizes, eos_token_id=[1, 2], pad_token_id=0)).cuda()
found = other.generate(prompts, max_new_tokens=4, do_sample=False, num_beams=2)
assert found.tolist() == [[3] * 5] * 2, "no prompt in front"
"""


def test_what_generate_returns_in_its_other_forms_has_values_too(tmp_path):
    text = GENERATES.format(settings="do_sample=False").replace("while True", FORMS + "while True")
    assert play(tmp_path, text).tensor_bytes


def value(tensor):
    known = known_values.value_of(tensor)
    return None if known is None else known.tolist()


def test_the_known_operand_decides():
    fake = PlayedDevice((8, 0))
    with fake:
        unknown = torch.randint(0, 2, (3,), device=fake.device)
        no, yes = (torch.full((3,), value, device=fake.device) for value in (False, True))
        maybe = unknown.bool()
        assert value(maybe & no) == value(no.logical_and(maybe)) == [0] * 3
        assert value(maybe | yes) == [1] * 3 and value(unknown * 0) == [0] * 3
        assert value(torch.ones_like(unknown)) == [1] * 3
        assert value(torch.histc(torch.arange(3, device=fake.device), 2)) is None, "the GPU alone has it for integers"
        for one in (maybe & yes, maybe | no, unknown | 1, maybe ^ yes, unknown * 2, torch.empty_like(unknown)):
            assert value(one) is None


def test_a_tensor_that_took_in_unknown_numbers_is_not_known_any_more():
    fake = PlayedDevice((8, 0))
    with fake:
        unknown = torch.randint(0, 9, (3,), device=fake.device)
        rows, real = torch.zeros(2, 3, dtype=torch.int64, device=fake.device), torch.zeros(2, 3, dtype=torch.int64)
        kept = rows.clone()
        for one in (rows, real):
            one[0] = unknown
            assert value(one) is None and value(one[1]) is None
        assert value(kept) == [[0] * 3] * 2
        rows.zero_()
        assert value(rows) == [[0] * 3] * 2


@pytest.mark.parametrize(
    "read",
    [
        "right = (model(x).argmax(-1) == x).cpu()\nprint(sum(int(right[0, i]) for i in range(6)), bool(right[0, 0]))",
        "with torch.no_grad(): y = model(x).argmax(-1)\nassert (y.cpu().numpy() == x.cpu().numpy()).size == 24",
        "print({0: 'a', 1: 'b'}[model(x).argmax(-1)[0, 0].item()], {*model(x).argmax(-1)[0].tolist()})",
        "with torch.no_grad(): print(['a', 'b'][model(x).argmax(-1)[0, 0]])",
    ],
)
def test_figures_of_an_evaluation_before_training_are_read_with_a_note(tmp_path, read):
    found = play(tmp_path, EVALUATES.format(read=read))
    assert [note for note in found.notes if "reads numbers that nobody computed" in note] or ".item()" in read


def test_integers_that_are_known_are_the_real_ones(tmp_path):
    known = "factors = torch.tensor([100, 10, 1], device='cuda')\nassert (x[:, :3] * factors).sum(1)[1].item() == 678"
    ids = "\nids = torch.zeros_like(model(x).argmax(-1)); ids[:, :2] = x[:, :2]"
    ids += "; assert ids[1].tolist() == [6, 7] + [0] * 4"
    assert not [note for note in play(tmp_path, EVALUATES.format(read=known + ids)).notes if "nobody" in note]


@pytest.mark.parametrize(
    "size",
    ["model(x).argmax(-1)[0, 0].tolist()", "model(x).argmax(-1)[0].cpu().numpy()[1]", "len(range(model(x).argmax()))"],
)
def test_integers_that_are_sizes_are_refused(tmp_path, size):
    with pytest.raises(Refusal, match=r"script.py:7: .*only a run computes"):
        play(tmp_path, EVALUATES.format(read=f"torch.zeros({size}, 3, device='cuda')"))


def test_a_script_that_estimates_its_step_is_told_to_run_as_it_is(tmp_path):
    with pytest.raises(Refusal, match=r"trains nothing: .*estimate_step.* Type python .*script.py"):
        play(tmp_path, "from legroom.foresight import estimate_step\nestimate_step(print, make=list, gpu='l4_24gb')")


def test_a_truncated_normal_is_drawn_once_and_decides_nothing(tmp_path):
    assert play(tmp_path, EVALUATES.format(read="nn.init.trunc_normal_(model[1].weight)"), strict=True).tensor_bytes


def test_distributions_take_parameters_and_samples_for_valid(tmp_path):
    text = """
    import torch
    from torch.distributions import Beta, Categorical, Normal
    policy = torch.nn.Linear(4, 3).cuda()
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)
    while True:
        found = policy(torch.ones(2, 4, device="cuda"))
        print(f"{found}, {found[0, 0]:.2f}")
        chosen, spread = Categorical(logits=found), Normal(found, found.exp())
        gain = chosen.log_prob(chosen.sample()).sum() + spread.log_prob(spread.sample()).sum()
        (gain + Beta(found.exp(), found.exp()).rsample().sum()).backward()
        optimizer.step()
    """
    assert play(tmp_path, text, strict=True).tensor_bytes


def test_an_action_that_nobody_computed_is_one_of_the_space():
    def real(space, action):
        return type(action) is int and 0 <= action < space

    assert played_code.contains(real, None, 2, UnknownInt(1, lambda: False)) and not played_code.contains(
        real, None, 2, 3
    )


def test_a_number_that_json_writes_names_the_scripts_line_once(tmp_path):
    writes = "import io, json\njson.dump(dict(loss=model(x).mean().item()), io.StringIO())"
    notes = [note for note in play(tmp_path, EVALUATES.format(read=writes)).notes if "nobody computed" in note]
    assert len(notes) == 1 and "script.py:8 decides" in notes[0]
