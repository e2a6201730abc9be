"""What is derived of a model before it is there: small copies, heads, labels, and what is refused."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from conftest import compose, small
from transformers import BertConfig

from legroom.errors import Refusal
from legroom.estimator.ledger import quantised
from legroom.models import builder, head, moe, pretrained, quantized
from legroom.parallelism import four_bits


@pytest.fixture(scope="module")
def plain():
    return compose(*small("eval.batch=8")).cfg


# --- heads and labels ----------------------------------------------------------------------------


def test_weights_of_the_head():
    def weights():
        return torch.nn.Linear(1, 1)

    model = torch.nn.ModuleDict({"bert": torch.nn.ModuleDict({"encoder": weights(), "pooler": weights()})})
    model.update({"classifier": weights(), "dropout": torch.nn.Dropout(), "bertish": weights()})
    model.base_model_prefix = "bert"
    assert head.modules(model) == ["classifier", "bertish", "bert.pooler"]
    names = {
        "bert.encoder.weight": False,
        "bert.pooler": True,
        "bert.pooler.weight": True,
        "bert.poolers.weight": False,
    }
    assert {name: head.is_part(model, name) for name in names} == names


def of(**values):
    return SimpleNamespace(**({"problem_type": None, "num_labels": 2, "architectures": None} | values))


@pytest.mark.parametrize(
    "config,task,result",
    [
        (of(label2id={"a": 0, "b": "1"}, id2label={0: "a", 1: "b"}), "classification", {"a": 0, "b": 1}),
        (of(label2id={"LABEL_0": 0, "LABEL_1": 1}, id2label={0: "a", 1: "b"}), "classification", {"a": 0, "b": 1}),
        (of(label2id={"a": 0, "b": 1}, id2label={0: "LABEL_0", 1: "LABEL_1"}), "classification", {"a": 0, "b": 1}),
        (of(label2id={"a": 0, "b": 2}, id2label={0: "LABEL_0", 1: "LABEL_1"}), "classification", "contradicts itself"),
        (of(label2id={"a": 0, "b": 1}, id2label={0: "b", 1: "a"}), "classification", "contradicts itself"),
        (of(label2id=None, id2label=None), "classification", {}),
        (of(num_labels=1, label2id={"x": 0}, id2label={0: "x"}), "regression", {"x": 0}),
        (of(num_labels=1, label2id={"x": 0}, id2label={0: "x"}), "classification", "head is for regression"),
        (of(label2id={"x": 0}, id2label={0: "x"}), "regression", "for single_label_classification"),
        (
            of(problem_type="multi_label_classification", label2id={"x": 0}, id2label={0: "x"}),
            "classification",
            "Type data.task=multi_label",
        ),
    ],
)
def test_the_labels_of_a_pretrained_head(config, task, result):
    if isinstance(result, dict):
        assert head.labels(config, task) == result
    else:
        with pytest.raises(Refusal, match=result):
            head.labels(config, task)


class Kept:
    """A lever that makes a stand-in for the model, and keeps how it would have been made."""

    def configure_model(self, construction):
        self.construction = construction
        construction.build = lambda: SimpleNamespace(config=construction.config)


@pytest.mark.parametrize("task", ["classification", "regression", "multi_label"])
@pytest.mark.parametrize("said", [None, "regression", "multi_label_classification"])
def test_a_new_head_is_for_the_trained_task(plain, task, said):
    config, data = BertConfig(problem_type=said), SimpleNamespace(task=task, vocab=10, classes=2, names=[], head=None)
    builder.build_model(plain, config, data, [Kept()], weights=False)
    assert config.problem_type == head.PROBLEMS[task]


@pytest.mark.parametrize("vocab,refused", [(9, False), (10, False), (11, True)])
def test_ids_beyond_the_vocabulary_are_refused(plain, vocab, refused):
    data = SimpleNamespace(
        task="language_modelling",
        vocab=vocab,
        highest_id=lambda: vocab - 1,
        masking=None,
        classes=0,
        names=[],
        head=None,
    )
    said = None
    try:
        builder.build_model(plain, BertConfig(vocab_size=10), data, [Kept()])
    except Refusal as error:
        said = str(error)
    wanted = "the data has token ids up to 10, and the model a vocabulary of 10. Type model.vocab=16."
    assert said == (wanted if refused else None)


# --- pretrained weights --------------------------------------------------------------------------


class Loaded(torch.nn.Module):
    """A model with weights a, b and a head."""

    base_model_prefix = "base"
    all_tied_weights_keys: dict[str, str] = {}

    def get_expanded_tied_weights_keys(self, all_submodels):
        return {}

    def __init__(self, **values):
        super().__init__()
        self.base = torch.nn.Module()
        for name, value in ({"a": [1.0], "b": [1.0, 2.0]} | values).items():
            setattr(self.base, name, torch.nn.Parameter(torch.tensor(value), requires_grad=False))
        self.head = torch.nn.Linear(1, 1)


@pytest.mark.parametrize(
    "message,said",
    [
        ("one. two\nthree", "one. two"),
        ("It is this:\n  the reason \nmore", "It is this: the reason"),
        ("It is this:", "It is this:"),
        ("word", "KeyError word"),
        ("", "KeyError"),
    ],
)
def test_the_first_sentence_of_an_error_is_what_is_shown(tmp_path, message, said):
    class KeyError(Exception):
        pass

    def load(name, **_):
        raise KeyError(message)

    with pytest.raises(Refusal) as refused:
        pretrained.call(load, str(tmp_path))
    assert str(refused.value) == f"model.pretrained={tmp_path} cannot be loaded: {said}"
    with pytest.raises(Refusal) as refused, pretrained.building(BertConfig(), "a/b"):
        raise KeyError(message)
    assert said in str(refused.value) and "no bert can be built" in str(refused.value)
    with pytest.raises(KeyError), pretrained.building(BertConfig(), None):
        raise KeyError(message)
    with pytest.raises(Refusal, match="mine"):
        pretrained.call(lambda *_, **__: pretrained.refuse_missing("mine", Loaded(), ["a"], ""), str(tmp_path))


# --- experts, and weights in few bits ------------------------------------------------------------


def test_the_flops_of_experts_and_where_they_are():
    assert moe.flops(torch.Size([6, 5]), torch.Size([3, 5, 7])) == 2 * 6 * 5 * 7
    assert moe.gradient_flops(torch.Size([6, 5]), torch.Size([3, 5, 7])) == 4 * 6 * 5 * 7

    def has(**values):
        return moe.has_experts(SimpleNamespace(to_dict=lambda: values))

    assert has(num_experts=4) and has(text_config={"n_routed_experts": 2}) and not has(experts_implementation="x")
    assert not has(text_config={"hidden_size": 2}, vocab_size=3)
    module = torch.nn.Linear(2, 2)
    read = moe.CastParameters(module, torch.bfloat16)
    assert read.weight.dtype == torch.bfloat16 and read.in_features == 2 and module.weight.dtype == torch.float32


def test_large_weights_that_are_not_quantised_are_said():
    def parameter(*shape, trained=False, dtype=torch.float32):
        return torch.nn.Parameter(torch.zeros(shape, dtype=dtype), requires_grad=trained)

    model, layer, packed = torch.nn.Module(), torch.nn.Module(), torch.nn.Module()
    packed.weight = parameter(6, 1, dtype=torch.uint8)
    packed.quant_state = SimpleNamespace(shape=(3, 4), absmax=torch.ones(2), code=None, offset=None, state2=None)
    layer.packed, layer.norm, layer.adapter = packed, parameter(5), parameter(2, 2, trained=True)
    model.layers, model.embedding = torch.nn.ModuleList([layer]), parameter(10, 10)
    assert quantized.warnings(model, 4) == []
    assert sum(quantized.counts(model).values()) == quantized.count(model) == 12 + 5 + 4 + 100
    assert [each.tolist() for each in quantised.scales(model)] == [[1.0, 1.0]]
    layer.experts = parameter(2, 3, 4)
    (line,) = quantized.warnings(model, 4)
    assert line.startswith("adapter.bits=4: 24 of the 41 frozen parameters of the layers")
    packed.in_features, packed.out_features = 4, 3
    four_bits.as_floats(model, torch.bfloat16)
    assert packed.weight.dtype == torch.bfloat16 and packed.weight.shape == (3, 1) and not packed.weight.requires_grad
    four_bits.as_floats(model, torch.bfloat16)  # once is enough
    packed.weight = parameter(5, 1, dtype=torch.uint8)
    with pytest.raises(Refusal, match="a layer of 3 x 4 has an odd number of bytes"):
        four_bits.as_floats(model, torch.bfloat16)


# --- padding and the next token ------------------------------------------------------------------


def test_a_name_with_an_unknown_home_is_asked_of_the_hub():
    """As an adapter's settings may name its base."""

    def load(name: str, trust_remote_code: bool) -> None:
        raise OSError(f"{name} is nowhere")

    with pytest.raises(Refusal, match="~nobody-of-this-name/base is no folder here"):
        pretrained.call(load, "~nobody-of-this-name/base")
