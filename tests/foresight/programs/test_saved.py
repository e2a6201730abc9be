"""What a script saves and copies, it finds again: shapes, places, shared storages, and the values that are known."""

from __future__ import annotations

import os

import pytest
import safetensors.torch
import torch
from played_scripts import GPU, play

from legroom.foresight.programs import check, command, isolation, played_code, process, saved
from legroom.foresight.step_estimate import gpu_of
from legroom.third_party.patching import patched
from legroom.units import MIB

MODEL = """
import copy, io, os, pickle, torch, torch.nn as nn
class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Embedding(3000, 256), nn.Linear(256, 3000, bias=False)
        self.last.weight = self.first.weight
        self.register_buffer("positions", torch.arange(7))
    def forward(self, x):
        return self.last(self.first(x))
device = {device!r}
model = Tied().to(device)
torch.save(model.state_dict(), "a.pt")
os.rename("a.pt", "best.pt")
first = torch.load("best.pt")
assert first["first.weight"].device == model.first.weight.device
assert first["positions"].tolist() == list(range(7))
assert first["first.weight"].data_ptr() == first["last.weight"].data_ptr() != model.first.weight.data_ptr()
for place in ("cpu", lambda storage, location: storage, dict([("cuda:0", "cpu")])):
    found = torch.load("best.pt", map_location=place)
    assert found["first.weight"].is_cpu and found["positions"].tolist() == list(range(7))
assert torch.load("best.pt", weights_only=True, mmap=True)["first.weight"].shape == (3000, 256)
with open("model.pt", "wb") as file:
    torch.save(model, file)
try:
    torch.load("model.pt")
    raise SystemExit("a class of the script's is no weight")
except pickle.UnpicklingError:
    pass
model = torch.load("model.pt", weights_only=False)
assert model.first.weight is model.last.weight and model.first.weight.is_leaf and model.first.weight.requires_grad
buffer = io.BytesIO()
torch.save(dict(rows=torch.arange(4), scale=torch.tensor([1.5]), wide=torch.zeros(70_000)), buffer)
buffer.seek(0)
rows = torch.load(buffer)
assert rows["rows"].tolist() == [0, 1, 2, 3] and rows["scale"].item() == 1.5 and rows["wide"].shape == (70_000,)
copied = copy.deepcopy(model.state_dict())
weight = copied["first.weight"]
assert weight.data_ptr() == copied["last.weight"].data_ptr() != model.first.weight.data_ptr()
assert copied["positions"].tolist() == list(range(7)) and weight.device == model.first.weight.device
model.load_state_dict(copied)
optimizer = torch.optim.Adam(model.parameters())
while True:
    model(torch.zeros(4, 8, dtype=torch.long, device=device)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    torch.save([model.state_dict(), optimizer.state_dict()], "all.pt", _use_new_zipfile_serialization=False)
    weights, states = torch.load("all.pt")
    model.load_state_dict(weights)
    optimizer.load_state_dict(states)
"""

OURS = """
import functools, torch
from legroom.foresight.programs import saved
pairs = (saved.save, torch.save), (saved.load, torch.load)
torch.save, torch.load = (functools.partial(ours, real, print) for ours, real in pairs)
"""


def test_what_is_saved_and_copied_on_the_played_gpu_is_found_again(tmp_path):
    with patched(torch, save=torch.save):  # a check puts these in the place of torch's as the script's process starts
        found = play(tmp_path, OURS + MODEL.format(device="cuda"))
    weight = 4 * 3000 * 256
    assert found.parts["parameters"] == pytest.approx(weight, rel=0.01), "tied weights stay one"
    assert found.parts["other"] >= 3 * weight, "what the script holds of its files, and its copy, is on the GPU"
    assert max(os.path.getsize(tmp_path / name) for name in ("best.pt", "model.pt", "all.pt")) < 20_000


def test_a_real_run_finds_what_it_saved_and_leaves_none_of_it(tmp_path, monkeypatch):
    (tmp_path / "script.py").write_text(MODEL.format(device="cpu").replace("while True", "for _ in range(2)"))
    monkeypatch.chdir(tmp_path)
    done = process.run(process.Asked(command.parse(["script.py"]), None, limits=process.Limits(60)))
    assert (done.status, done.exit_code) == (process.ENDED, 0), done.output
    assert os.listdir(tmp_path) == ["script.py"]


def test_beyond_the_most_bytes_a_file_has_shapes_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(saved, "MOST_BYTES", 4000)
    said = []
    values = [torch.ones(900), torch.ones(900), torch.ones(3)]
    saved.save(torch.save, said.append, values, tmp_path / "a.pt")
    found = saved.load(torch.load, None, tmp_path / "a.pt")
    assert [one.sum().item() for one in found] == [900, 0, 3] and len(said) == 1 and "loaded as 0" in said[0]


LIBRARIES = """
import torch, torch.distributed.checkpoint as dcp
from accelerate import Accelerator
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
Tokenizer(models.WordLevel(dict(a=0, b=1), unk_token="a")).save("words.json")
assert Tokenizer.from_file("words.json").get_vocab_size() == 2
PreTrainedTokenizerFast(tokenizer_file="words.json").save_pretrained("words")
assert AutoTokenizer.from_pretrained("words")("b")["input_ids"] == [1]
small = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=1, num_attention_heads=2, vocab_size=64)
LlamaForCausalLM(LlamaConfig(**small)).save_pretrained("base")
model = get_peft_model(LlamaForCausalLM.from_pretrained("base"), LoraConfig(r=2, target_modules="all-linear"))
model.save_pretrained("adapter")
model = PeftModel.from_pretrained(LlamaForCausalLM.from_pretrained("base"), "adapter", is_trainable=True).cuda()
save_file(dict(rows=torch.arange(4), wide=torch.zeros(300, 300, device="cuda")), "rows.safetensors")
found = load_file("rows.safetensors", device="cuda:0")
assert found["rows"].tolist() == [0, 1, 2, 3] and found["wide"].shape == (300, 300) and found["wide"].is_cuda
state = dict(model=model.state_dict())
dcp.save(state, checkpoint_id="state")
dcp.load(state, checkpoint_id="state")
accelerator = Accelerator()
model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
while True:
    ids = torch.zeros(2, 8, dtype=torch.long, device="cuda")
    accelerator.backward(model(input_ids=ids, labels=ids).loss)
    optimizer.step()
    accelerator.save_state("all")
    accelerator.load_state("all")
"""


PAGED = """
import bitsandbytes, torch
model = torch.nn.Linear(1024, 1024, bias=False).cuda()
optimizer = bitsandbytes.optim.{kind}(model.parameters(), lr=1e-4)
while True:
    model(torch.randn(8, 1024, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize("kind, states", [("PagedAdamW8bit", 2), ("PagedAdamW", 8), ("PagedLion32bit", 4)])
def test_paged_states_are_counted_beside_the_memory(tmp_path, kind, states):
    """A check puts these in the place of bitsandbytes' own as the script imports them."""
    functional = pytest.importorskip("bitsandbytes.functional")
    kept = {name: getattr(functional, name) for name in ("get_paged", "fill", "prefetch_tensor")}
    with patched(functional, **kept):
        isolation._AfterImport(print).change(functional)
        found = play(tmp_path, PAGED.format(kind=kind))
    assert found.parts["optimizer"] == pytest.approx(states * 1024**2, rel=0.02)
    assert found.allocated_bytes < 2 * 4 * 1024**2 + 17 * MIB, "a weight, its gradient and two workspaces"
    assert any("paged optimizer states" in note for note in found.notes)


def test_a_real_run_pages_its_states_itself():
    def real(*given, **named):
        return given, named

    assert played_code.paged(real, print, 2, 3, dtype=torch.uint8) == ((2, 3), {"dtype": torch.uint8})
    state = torch.ones(2)
    assert played_code.not_paged(real, print, state, 0) == ((state, 0), {})


def test_what_libraries_save_is_found_again_and_nothing_is_left(tmp_path, monkeypatch):
    (tmp_path / "script.py").write_text(LIBRARIES)
    monkeypatch.chdir(tmp_path)
    (found,) = check.followed(command.parse(["script.py"]), {GPU: gpu_of(GPU)}, check.Settings(offline=True))
    assert found.estimates, found.why + found.outcome.output
    assert os.listdir(tmp_path) == ["script.py"]


def test_a_file_of_safetensors_itself_is_read_as_it_is(tmp_path):
    torch_file, real = tmp_path / "torch.safetensors", tmp_path / "real.safetensors"
    safetensors.torch.save_file({"rows": torch.ones(3)}, real)
    saved.save_tensors(print, print, {"rows": torch.ones(2)}, torch_file)
    assert len(saved.load_tensors(safetensors.torch.load_file, None, real)["rows"]) == 3
    assert len(saved.load_tensors(safetensors.torch.load_file, None, torch_file)["rows"]) == 2


def test_a_large_real_state_is_not_written_by_torchs_checkpoints(monkeypatch):
    monkeypatch.setattr(saved, "MOST_BYTES", 4000)
    said = []
    for size in (900, 1100):
        saved.save_distributed(lambda state: said.append("written"), said.append, {"a": [torch.ones(size)]})
    assert said == ["written", "torch.distributed.checkpoint.save does nothing here."]
