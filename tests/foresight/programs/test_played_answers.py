"""What scripts ask of tensors, streams and the memory of the played GPU beside their training, each answered once."""

from __future__ import annotations

import textwrap

import pytest
from played_scripts import play
from test_played_scripts import loop

from legroom import Refusal


def once(code: str) -> str:
    """A loop with code behind its first step."""
    return loop(after="if step == 0:" + textwrap.indent(textwrap.dedent(code), " " * 8))


def test_tensors_move_and_compare_as_they_do_on_a_gpu(tmp_path):
    asked = """
    host = torch.ones(3)
    assert host.to(0).is_cuda and host.to(0, torch.float16).dtype == torch.float16
    assert x.to("meta").is_meta and x.to("meta").shape == x.shape
    assert host.pin_memory() is host and x.share_memory_() is x
    host.untyped_storage().resize_(0)
    assert host.untyped_storage().nbytes() == 0
    x.record_stream(torch.cuda.current_stream())
    made = torch.cuda.HalfTensor(torch.ones(2, 3))
    assert made.is_cuda and made.dtype == torch.float16 and made.shape == (2, 3)
    counts = torch.histc(torch.arange(8).cuda(), bins=4, min=0, max=7)
    assert counts.shape == (4,)
    if torch.equal(loss, loss * 1) or torch.allclose(loss, loss):
        raise SystemExit("nobody computed them")
    chosen = model(x).argmax(-1)
    assert len([*chosen.cpu().numpy()]) == 64 and chosen.view(8, 8).cpu().numpy().tolist()[7][7] + 1 > 1 or True
    """
    found = play(tmp_path, once(asked))
    assert [note for note in found.notes if "decides by a number that nobody computed" in note]


def test_streams_and_contexts_are_over_as_soon_as_they_are_asked_for(tmp_path):
    asked = """
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    with torch.cuda.Stream() as stream, torch.cuda.device(0), torch.cuda.device_of(x):
        assert not stream.is_capturing() and stream.query() and begin.query()
        stream.wait_event(stream.record_event())
    context = torch.cuda.device("cuda:0")
    with context as nothing:
        assert nothing is None and context.idx == context.prev_idx == 0
    end.record()
    assert begin.elapsed_time(end) > 0
    """
    assert play(tmp_path, once(asked)).verdict == "fits"
    with pytest.raises(Refusal, match="asks for cuda:1"):
        play(tmp_path, once("\nwith torch.cuda.device(1): pass"))


def test_a_peak_begins_anew_where_the_script_says_so(tmp_path):
    asked = """
    big = torch.empty(64, 2**20, device="cuda")
    del big
    most = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    torch.cuda.reset_peak_memory_stats()
    assert most[0] - torch.cuda.max_memory_allocated() > 2**27
    assert torch.cuda.max_memory_allocated() == torch.cuda.memory_allocated()
    assert torch.cuda.max_memory_reserved() == torch.cuda.memory_reserved() == most[1]
    assert torch.cuda.memory_stats()["num_alloc_retries"] == 0
    free, total = torch.cuda.mem_get_info()
    assert total - free > torch.cuda.memory_reserved() > 0
    """
    assert play(tmp_path, once(asked)).verdict == "fits"


def test_a_checkpoint_that_is_loaded_onto_the_gpu_is_there(tmp_path):
    asked = """
    from collections import OrderedDict, defaultdict
    names = defaultdict(list, a=[torch.ones(2)])
    torch.save(OrderedDict(w=torch.ones(3), more=(torch.ones(2), [torch.arange(2)]), names=names, step=4), "a.pt")
    for place in ("cuda", "cuda:0", torch.device("cuda"), torch.device("cuda", 0)):
        found = torch.load("a.pt", map_location=place, weights_only=False)
        assert type(found) is OrderedDict and type(found["names"]) is defaultdict and found["step"] == 4
        assert found["w"].is_cuda and found["more"][0].is_cuda and type(found["more"]) is tuple
        assert found["more"][1][0].is_cuda and found["names"]["a"][0].is_cuda and found["names"]["b"] == []
    assert torch.load("a.pt", map_location="cpu", weights_only=False)["w"].is_cpu
    """
    assert play(tmp_path, once(asked)).verdict == "fits"


def test_data_parallel_on_several_gpus_is_refused(tmp_path):
    wrapped = ".to(device)\nmodel = nn.DataParallel(model)"
    from_the_host = loop(wrapped).replace("x = torch.randn(64, 256).to(device)", "x = torch.randn(64, 256)")
    assert play(tmp_path, loop(wrapped)).parts == play(tmp_path, loop()).parts
    assert play(tmp_path, from_the_host).verdict == "fits", "it moves its rows itself"
    with pytest.raises(Refusal, match="DataParallel over several GPUs is not followed: DistributedDataParallel"):
        play(tmp_path, loop(wrapped.replace("(model)", "(model, device_ids=[0, 1])")))


def test_more_numbers_than_are_kept_are_not_copied_to_the_host(tmp_path):
    with pytest.raises(Refusal, match=r"script.py:\d+: the script copies 1,048,577 numbers that nobody computed"):
        play(tmp_path, once("torch.rand(2**20 + 1, device='cuda').tolist()"))
    assert play(tmp_path, once("assert len(torch.rand(2**20, device='cuda').cpu().numpy()) == 2**20"))
