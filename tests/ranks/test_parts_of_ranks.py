"""What each rank has of a model and of a step, without any other rank: collectives are noted and do nothing."""

from __future__ import annotations

import copy
import itertools
import sys
from types import SimpleNamespace

import pytest
import torch
import transformers
from torch import nn

from legroom import third_party
from legroom.data.data_loader import Batch
from legroom.parallelism import fsdp, pipeline, pipeline_parts, unwrap, zero
from legroom.ranks import rank_info

SIZES = dict(vocab_size=16, hidden_size=8, intermediate_size=8, num_attention_heads=2, num_key_value_heads=2)


def llama(layers: int, tied: bool = False):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**SIZES, num_hidden_layers=layers, tie_word_embeddings=tied, use_cache=False)
    return transformers.LlamaForCausalLM(config).eval()


@pytest.fixture
def part_of(monkeypatch):
    """part_of(model, rank, world, stages, chunks) -> the pipeline of a copy of the model on a rank that is alone."""

    def part_of(model, rank, world, stages, chunks=None, schedule="gpipe"):
        monkeypatch.setattr(pipeline.dist, "get_world_size", lambda: world)
        monkeypatch.setattr(pipeline.dist, "get_rank", lambda: rank)
        monkeypatch.setattr(pipeline.dist, "new_subgroups_by_enumeration", lambda ranks: (ranks, None))
        own = SimpleNamespace(together=stages, chunks=chunks, schedule=schedule)
        mine = copy.deepcopy(model)
        pipeline.split(mine, own)
        return pipeline.of(mine)

    return part_of


# layers of the model, stages, chunks of a stage -> the layers of each rank
@pytest.mark.parametrize(
    ("layers", "stages", "chunks", "expected"),
    [
        (2, 2, None, [[0], [1]]),
        (3, 3, None, [[0], [1], [2]]),
        (5, 2, None, [[0, 1, 2], [3, 4]]),  # what is left over comes first
        (4, 2, 2, [[0, 2], [1, 3]]),  # interleaved: each rank has every second part
        (7, 2, 2, [[0, 1, 4, 5], [2, 3, 6]]),
    ],
)
def test_which_layers_each_rank_has(part_of, layers, stages, chunks, expected):
    """The embeddings are the first rank's, the output layer is the last one's."""
    model, found = llama(layers), []
    for rank in range(stages):
        names = {name for name, _ in part_of(model, rank, stages, stages, chunks).model.named_parameters()}
        found.append(sorted({int(name.split(".")[2]) for name in names if name.startswith("model.layers.")}))
        assert ("model.embed_tokens.weight" in names) == (rank == 0)
        assert ("lm_head.weight" in names) == (rank == stages - 1)
    assert found == expected


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("stages,chunks,layers", [(2, None, 3), (3, None, 3), (2, 2, 5)])
def test_parts_one_after_the_other_compute_what_the_whole_does(part_of, tied, stages, chunks, layers):
    model = llama(layers, tied)
    ids = torch.arange(12).reshape(2, 6) % 16
    batch = {"input_ids": ids, "labels": ids}
    whole = model(**batch).loss
    whole.backward()
    parts = [part_of(model, rank, stages, stages, chunks) for rank in range(stages)]
    assert sum(part.layers for part in parts) == layers
    assert [part.tied is None for part in parts] == [not tied or rank in range(1, stages - 1) for rank in range(stages)]
    given = ids
    for index in range(stages * (chunks or 1)):
        part = parts[index % stages]
        given = part._run(index, given, batch, part.model)
        assert part.running is None and all(each.hidden is None for each in part.received.values())
    torch.testing.assert_close(given, whole)
    given.backward()
    for part in parts:
        part.model.requires_grad_(True)
    gradients = {}
    for part in parts:
        for name, weight in part.model.named_parameters():
            gradients[name] = gradients.get(name, 0) + (0 if weight.grad is None else weight.grad)
    for name, weight in model.named_parameters():
        torch.testing.assert_close(gradients[name], weight.grad, msg=name)


def rows(count: int, tokens: int, ranks: int = 1):
    ids = torch.arange(1, count * tokens + 1).reshape(count, tokens) % 16
    made = Batch({"input_ids": ids, "labels": ids.clone()})
    made.ranks = ranks
    return made


@pytest.mark.parametrize("cause,raised", [(KeyError("mine"), KeyError), (None, RuntimeError)])
def test_what_a_pass_raises_is_raised_by_the_step(part_of, monkeypatch, cause, raised):
    def step(*_, **__):
        raise RuntimeError("torch's own") from cause

    part = part_of(llama(2), 0, 2, 2)
    monkeypatch.setattr(pipeline.torch_distributed_private, "pipeline_stage", lambda *_: None)
    schedule = SimpleNamespace(step=step)
    monkeypatch.setattr(pipeline.torch_distributed_private, "pipeline_schedule", lambda *_: schedule)
    with pytest.raises(raised):
        part.step([rows(1, 2)], [None])


@pytest.mark.parametrize("tied,rank,replicas", list(itertools.product((True, False), (0, 1), (1, 2))))
def test_gradients_of_ties_and_of_replicas_are_summed(part_of, monkeypatch, tied, rank, replicas):
    part, seen = part_of(llama(2, tied), rank, 2 * replicas, 2), []
    monkeypatch.setattr(pipeline.dist, "all_reduce", lambda tensor, group: seen.append((group, tensor.mean().item())))
    weights = list(part.model.parameters())
    for weight in weights[1:] if not tied else weights:
        weight.grad = torch.full_like(weight, 6.0)
    part._sum_gradients(replicas)
    assert [value for group, value in seen if group == part.ends] == [6.0] * tied * (1 if replicas else 0)
    copies = [value for group, value in seen if group == part.copies]
    assert copies == ([6.0 / replicas] * (len(weights) - (not tied)) if replicas > 1 else [])


def test_clipping_counts_each_weight_once(part_of, monkeypatch):
    norms = []
    monkeypatch.setattr(pipeline.dist, "all_reduce", lambda square, group: square.add_(7.0))
    for rank in (0, 1):
        part = part_of(llama(2, tied=True), rank, 2, 2)
        for weight in part.model.parameters():
            weight.grad = torch.ones_like(weight)
        counted = sum(each.numel() for each in part.model.parameters() if rank == 0 or each is not part.tied)
        norm = part.clip(iter(part.model.parameters()), 0.5)
        assert norm.item() == pytest.approx((counted + 7) ** 0.5)
        norms += [each.grad.max().item() * norm.item() for each in part.model.parameters()]
    assert norms == pytest.approx([0.5] * len(norms), rel=1e-3)


def test_the_whole_state_is_gathered_on_rank_0(part_of, monkeypatch):
    """Of four ranks, the last two of which have what the first two have."""
    model, sent = llama(2, tied=True), {}
    parts = [part_of(model, rank, 4, 2) for rank in range(4)]
    monkeypatch.setattr(pipeline.dist, "send", lambda tensor, to: sent.setdefault(to, []).append(tensor))
    monkeypatch.setattr(pipeline.dist, "recv", lambda tensor, of: tensor.copy_(sent[0].pop(0)))
    states = [{name: (e.shape, e.dtype) for name, e in part.model.state_dict().items()} for part in parts]
    monkeypatch.setattr(pipeline.collectives, "all_gather", lambda own: states)
    found = {}
    for rank in (3, 2, 1, 0):
        monkeypatch.setattr(pipeline.dist, "get_rank", lambda rank=rank: rank)
        found[rank] = parts[rank].gathered()
    assert found[0].keys() == model.state_dict().keys() and sent == {0: []}
    for name, weight in model.state_dict().items():
        assert torch.equal(found[0][name], weight), name
    assert len(found[1]) < len(found[0])


@pytest.mark.parametrize("stages,chunks", [(2, None), (3, None), (2, 2)])
def test_an_evaluation_goes_through_all_parts(part_of, monkeypatch, stages, chunks):
    """One rank at a time, each again from its beginning, until what it waits for is there."""
    model = llama(4)
    ids = torch.arange(12).reshape(2, 6) % 16
    batch = {"input_ids": ids, "labels": ids}
    parts = [part_of(model, rank, stages, stages, chunks) for rank in range(stages)]
    sent: dict[tuple[int, int], list] = {}  # (from, to) -> what was sent, by its order
    seen: dict[tuple[int, int], int] = {}
    losses: dict[int, float] = {}
    now = [0]

    class Waits(Exception):
        pass

    def send(tensor, to, group):
        place = ("sent", to)
        seen[place] = seen.get(place, 0) + 1
        sent.setdefault((now[0], to), [])
        if len(sent[now[0], to]) < seen[place]:
            sent[now[0], to].append(tensor.clone())

    def recv(tensor, of, group):
        place = ("received", of)
        seen[place] = seen.get(place, 0) + 1
        there = sent.get((of, now[0]), [])
        if len(there) < seen[place]:
            raise Waits
        tensor.copy_(there[seen[place] - 1])

    def broadcast(tensor, of, group):
        assert of == stages - 1
        if now[0] == of:
            losses["whole"] = tensor.item()
        tensor.fill_(losses["whole"])

    for name, function in (("send", send), ("recv", recv), ("broadcast", broadcast)):
        monkeypatch.setattr(pipeline.dist, name, function)
    found: dict[int, float] = {}
    with torch.no_grad():
        for rank in [*range(stages)] * 3:
            seen.clear()
            now[0] = rank
            try:
                found[rank] = parts[rank].model(**batch).loss.item()
            except (Waits, KeyError):
                continue
        assert found == {rank: pytest.approx(model(**batch).loss.item(), rel=1e-5) for rank in range(stages)}


def test_an_accelerator_leaves_a_part_as_it_is(part_of):
    part, seen = part_of(llama(2), 0, 2, 2), {}
    accelerator = SimpleNamespace(prepare_model=lambda model, **more: seen.update(more), clip_grad_norm_=None)
    assert pipeline.attach(accelerator, llama(2)) is None and accelerator.clip_grad_norm_ is None
    assert pipeline.attach(accelerator, part.model) is part and accelerator.clip_grad_norm_ == part.clip
    accelerator.prepare_model(part.model)
    assert seen == {"evaluation_mode": True}


def test_the_modules_before_and_behind_the_layers(monkeypatch):
    def weights():
        return nn.Linear(1, 1)

    def made(**children):
        module = nn.Module()
        for name, child in children.items():
            module.add_module(name, child)
        return module

    layers = nn.ModuleList([weights(), weights(), weights()])
    fewer = made(inner=nn.ModuleList([weights(), weights()]))
    base = made(fewer=fewer, words=weights(), drop=nn.Dropout(), layers=layers, rotary=nn.Dropout(), norm=weights())
    model = made(base=base, head=weights(), baseline=weights(), drop=nn.Dropout())
    assert pipeline_parts.layers_of(model) == ("base.layers", layers)
    plan: list[str] = []
    monkeypatch.setattr(pipeline_parts.transformers_models_private, "pipeline_plan", lambda _: plan)
    own = ["head", "baseline"]
    assert pipeline_parts.around(model, "base.layers") == (["base.fewer", "base.words"], ["base.norm", *own])
    plan += ["fewer", "norm", "layers", "words", "rotary"]  # which names a module without weights, too
    planned = ["base.fewer", "base.norm"], ["base.words", "base.rotary", *own]
    assert pipeline_parts.around(model, "base.layers") == planned
    plan.append("unknown")  # a plan that is not of this model
    in_order = ["base.fewer", "base.words"], ["base.rotary", "base.norm", *own]
    assert pipeline_parts.around(model, "base.layers") == in_order


def test_modules_that_stand_for_others():
    embeddings = nn.Embedding(4, 3)
    none = pipeline_parts.NoEmbedding(embeddings, 5, torch.bfloat16)
    assert none(torch.ones(2, 3).long()).shape == (2, 3, 5) and none(torch.ones(2, 3).long()).dtype == torch.bfloat16
    given = torch.ones(2, 3)
    assert none(given) is given and none.num_embeddings == 4 and not list(none.parameters())
    assert not none(torch.ones(2).long()).any()
    received = pipeline_parts.Received(embeddings)
    assert received(1) is None
    received.hidden = given
    assert received("anything", more=1) is given and pipeline_parts.Passing(embeddings)(given, 7) is given


# --- FSDP, ZeRO and DDP --------------------------------------------------------------------------


class Rows(nn.Module):
    """A model of two units and a shared weight."""

    def __init__(self):
        super().__init__()
        self.small, self.list = nn.Linear(2, 2), nn.ModuleList([nn.Linear(4, 5), nn.Linear(5, 5)])
        self.shared, self.other = nn.Linear(9, 9, bias=False), nn.Linear(9, 9, bias=False)
        self.other.weight = self.shared.weight


@pytest.mark.parametrize(
    "least,units", [(1, "abs"), (7, "ab"), (25, "ab"), (26, "b"), (30, "b"), (31, ""), (None, "abs")]
)
def test_units_of_a_size_are_inner_ones_and_share_nothing(least, units):
    model = Rows()
    known_units = {"a": model.list[0], "b": model.list[1], "s": model.small}
    found = fsdp.units(model, "size", least)
    assert {id(each) for each in found} == {id(known_units[name]) for name in units}


@pytest.mark.parametrize(
    "rank,offload,on_gpu", [(0, False, False), (1, False, False), (1, True, True), (0, False, True)]
)
def test_only_rank_0_builds_a_sharded_model_with_weights(monkeypatch, rank, offload, on_gpu):
    log: list = []

    class Model(nn.Linear):
        def __init__(self, weights):
            super().__init__(2, 2)
            self.inner = nn.BatchNorm1d(2)
            log.append(["built", weights, self.weight.device.type])

        def to_empty(self, device):
            log.append(["on", device])
            return super().to_empty(device="cpu")

    monkeypatch.setattr(fsdp.collectives, "rank_index", lambda: rank)
    monkeypatch.setattr(fsdp, "shard", lambda cfg, model, device: log.append(["shard", device]))
    monkeypatch.setattr(fsdp.torch.cuda, "empty_cache", lambda: log.append("emptied"))
    monkeypatch.setattr(fsdp.dist, "broadcast", lambda tensor, src: log.append(["sent", src]))
    monkeypatch.setattr(fsdp.four_bits, "as_floats", lambda model, dtype: log.append(["floats", str(dtype)]))
    monkeypatch.setattr(fsdp.four_bits, "scales_from_rank_0", lambda *given: log.append(["scales", given[1] is None]))

    def load(model, values, options):
        log.append([len(values), options.full_state_dict, options.broadcast_from_rank0])

    monkeypatch.setattr(fsdp, "set_model_state_dict", load)
    own = SimpleNamespace(cpu_offload=offload)
    target = SimpleNamespace(device="cpu", on_gpu=on_gpu)
    cfg = SimpleNamespace(target=target, parallelism=own, precision=SimpleNamespace(name="fp16"))
    model = fsdp.build_sharded(cfg, lambda weights: Model(weights))
    first = rank == 0
    assert log == [
        *[["built", True, "cpu"]] * first,
        ["built", False, "meta"],
        ["shard", "cpu"],
        ["on", "cpu"],
        *[["floats", "torch.float16"]] * first,
        [7 if first else 0, True, True],
        *[["sent", 0]] * 3,
        ["scales", not first],
        *["emptied"] * on_gpu,
    ]
    assert all(not buffer.is_meta for buffer in model.buffers())


@pytest.mark.parametrize("stage,device", list(itertools.product((1, 2, 3), ("cpu", "cuda"))))
def test_how_a_model_comes_to_its_device_under_zero(monkeypatch, stage, device):
    log: list = []
    deepspeed = SimpleNamespace(zero=SimpleNamespace(Init=lambda **given: log.append(sorted(given))))
    monkeypatch.setitem(sys.modules, "deepspeed", deepspeed)
    skip = SimpleNamespace(skip_shared_memory_kernel=lambda: log.append("skipped"))
    monkeypatch.setattr(third_party, "deepspeed_private", skip, raising=False)
    monkeypatch.setitem(sys.modules, "legroom.third_party.deepspeed_private", skip)
    monkeypatch.setattr(zero, "configuration", lambda cfg: {})
    monkeypatch.setattr(zero.fsdp, "put_buffer", lambda model, name, buffer: log.append(f"{name} to {buffer}"))
    model = SimpleNamespace(
        to=lambda place: log.append(f"model to {place}"),
        named_buffers=lambda: [("mean", SimpleNamespace(to=lambda place: place))],
    )
    cfg = SimpleNamespace(parallelism=SimpleNamespace(stage=stage), target=SimpleNamespace(device=device))
    zero.to_device(cfg, model)
    part = [f"mean to {device}", *["skipped"] * (device == "cpu"), ["config_dict_or_path", "module"]]
    assert log == (part if stage == 3 else [f"model to {device}"])


class Swapping(torch.optim.SGD):
    """A schedule-free optimizer: evaluates with other weights than it trains."""

    def __init__(self, weights):
        super().__init__(weights, lr=1.0)
        self.mode = []

    def eval(self):
        self.mode.append("eval")
        for group in self.param_groups:
            for weight in group["params"]:
                weight.data += 1

    def train(self):
        self.mode.append("train")


def test_the_weights_of_an_evaluation_are_swapped_and_come_back():
    weight = nn.Parameter(torch.tensor([2.0]))
    wrapped = SimpleNamespace(optimizer=SimpleNamespace(optimizer=Swapping([weight])))
    inner = unwrap.inner_optimizer(wrapped)
    with torch.no_grad(), pytest.raises(KeyError), unwrap.evaluation_weights(wrapped):
        assert weight.item() == 3.0
        raise KeyError
    assert weight.item() == 2.0 and inner.mode == ["eval", "train"]
    unwrap.start_training(wrapped)
    assert inner.mode == ["eval", "train", "train"]
    plain = torch.optim.SGD([weight], lr=1.0)
    unwrap.start_training(plain)
    with unwrap.evaluation_weights(plain):
        assert weight.item() == 2.0


@pytest.mark.parametrize(
    "info,group,store",
    [
        (rank_info.RankInfo(), False, False),
        (rank_info.RankInfo(port=7), True, True),
        (rank_info.RankInfo(world_size=2), True, True),
        (rank_info.RankInfo(rank=1, world_size=2, launched=True, port=7), True, False),
        (rank_info.RankInfo(launched=True), True, False),
    ],
)
def test_who_joins_a_group_and_what_the_libraries_read(info, group, store, monkeypatch):
    assert (info.in_process_group, info.has_own_store, info.is_main) == (group, store, info.rank == 0)
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    for name in (*names, "GLOO_SOCKET_IFNAME"):
        monkeypatch.setenv(name, "former")
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")
    rank_info.export_environment(info)
    values = [rank_info.os.environ.get(name) for name in names]
    expected = [str(each) for each in (info.rank, info.world_size, 0, 1, info.address, info.port)]
    assert values == (expected if group else [None] * 4 + ["former"] * 2)
    assert ("GLOO_SOCKET_IFNAME" in rank_info.os.environ) == store
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)


@pytest.mark.parametrize(
    "given,expected",
    [
        ({}, rank_info.RankInfo()),
        ({"RANK": "3", "WORLD_SIZE": "8"}, rank_info.RankInfo()),
        ({"MASTER_ADDR": "a", "RANK": "x", "WORLD_SIZE": "8"}, rank_info.RankInfo()),
        ({"MASTER_ADDR": "a", "RANK": "3"}, rank_info.RankInfo()),
        (
            {"MASTER_ADDR": "a", "RANK": "3", "WORLD_SIZE": "8"},
            rank_info.RankInfo(3, 8, 3, 8, launched=True, address="a", port=29500),
        ),
        (
            {
                "MASTER_ADDR": "a",
                "RANK": "3",
                "WORLD_SIZE": "8",
                "LOCAL_RANK": "1",
                "LOCAL_WORLD_SIZE": "2",
                "MASTER_PORT": "9",
            },
            rank_info.RankInfo(3, 8, 1, 2, launched=True, address="a", port=9),
        ),
    ],
)
def test_which_rank_a_launcher_says_this_is(monkeypatch, given, expected):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert rank_info.current_rank() == expected
    assert rank_info.data_share(2) == (expected.rank // 2, expected.world_size // 2)
