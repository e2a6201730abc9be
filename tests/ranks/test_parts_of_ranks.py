"""What each rank has of a model and of a step, without any other rank: collectives are noted and do nothing."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import pytest
import torch
import transformers
from torch import nn

from legroom import config
from legroom.config.menus import Parallelism
from legroom.parallelism import fsdp, pipeline, pipeline_parts, unwrap
from legroom.ranks import rank_info

SIZES = dict(vocab_size=16, hidden_size=8, intermediate_size=8, num_attention_heads=2, num_key_value_heads=2)


def llama(layers: int, tied: bool = False):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**SIZES, num_hidden_layers=layers, tie_word_embeddings=tied, use_cache=False)
    return transformers.LlamaForCausalLM(config).eval()


def mode(**values):
    return config.from_dict(dict.fromkeys(Parallelism.__dataclass_fields__) | values, Parallelism)


@pytest.fixture
def part_of(monkeypatch):
    """part_of(model, rank, world, stages, chunks) -> the pipeline of a copy of the model on a rank that is alone."""

    def part_of(model, rank, world, stages, chunks=None, schedule="gpipe"):
        monkeypatch.setattr(pipeline.dist, "get_world_size", lambda: world)
        monkeypatch.setattr(pipeline.dist, "get_rank", lambda: rank)
        monkeypatch.setattr(pipeline.dist, "new_subgroups_by_enumeration", lambda ranks: (ranks, None))
        own = mode(kind="pipeline", stages=stages, chunks=chunks, schedule=schedule)
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
        given = part.run_part(index, given, batch, part.model)
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


def test_an_accelerator_leaves_a_part_as_it_is(part_of):
    part, seen = part_of(llama(2), 0, 2, 2), {}
    accelerator = SimpleNamespace(prepare_model=lambda model, **more: seen.update(more), clip_grad_norm_=None)
    assert pipeline.attach(accelerator, llama(2)) is None and accelerator.clip_grad_norm_ is None
    assert pipeline.attach(accelerator, part.model) is part and accelerator.clip_grad_norm_ == part.clip
    accelerator.prepare_model(part.model)
    assert seen == {"evaluation_mode": True}


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
    two_together = mode(kind="fsdp_tp", tensor_size=2)
    assert rank_info.data_share(two_together) == (expected.rank // 2, expected.world_size // 2)
