"""The guide's data sets from small files of their form, perplexity with a sliding window, and Mixtral's experts.

B batch, T tokens, N tokens of a stream.
"""

from __future__ import annotations

import csv
import json
import math

import datasets
import pandas
import pytest
import torch
from conftest import compose, small

from legroom.data import collate, dataset, rows, tokens
from legroom.errors import Refusal
from legroom.models import moe
from legroom.options import data_sources, task

RECIPES = ["trainer", "accelerate"]
PAIRS = [
    {"sentence1": f"The {n} dogs ran home .", "sentence2": f"{n} dogs ran , é said .", "label": n % 2, "idx": n}
    for n in range(12)
]
LINES = ["", " = A title = \n", "", *(f" Line {n} of the article , as long as it is with é . \n" for n in range(12))]


def write(path, rows: list[dict]) -> None:
    """Rows as a file of the kind that the name says."""
    if path.suffix == ".parquet":
        pandas.DataFrame(rows).to_parquet(path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows))
    elif path.suffix == ".txt":
        path.write_text("".join(row["text"] or " \n" for row in rows))
    else:
        with open(path, "w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]), delimiter="\t" if path.suffix == ".tsv" else ",")
            writer.writeheader()
            writer.writerows(rows)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """folder(name, suffix) -> a folder that holds a small mrpc or wikitext in files of that kind."""

    def make(name: str, suffix: str):
        place = tmp_path_factory.mktemp(name)
        rows = PAIRS if name == "mrpc" else [{"text": line} for line in LINES]
        write(place / f"train-00000-of-00001{suffix}", rows)
        write(place / f"validation-00000-of-00001{suffix}", rows[:6])
        write(place / f"test-00000-of-00001{suffix}", rows[6:])
        return place

    return make


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    """A tokenizer's folder: one token a word, and BERT's way to put two texts into one row."""
    import tokenizers
    from transformers import PreTrainedTokenizerFast

    names = [
        "[PAD]",
        "[CLS]",
        "[SEP]",
        "[UNK]",
        *sorted({w for row in PAIRS for k in ("sentence1", "sentence2") for w in row[k].split()}),
    ]
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({name: n for n, name in enumerate(names)}, "[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    path = tmp_path_factory.mktemp("words")
    PreTrainedTokenizerFast(
        tokenizer_object=made,
        pad_token="[PAD]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        unk_token="[UNK]",
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    ).save_pretrained(path)
    return path, names


def built(*overrides: str) -> dataset.Data:
    """The rows of a small configuration, as the worker builds them."""
    cfg, _, problems = compose(*small(*overrides))
    assert not problems, problems
    return dataset.build_data(cfg, task.task(cfg), cfg.model.vocab)


def in_bytes(text: str) -> list[int]:
    return [byte + 1 for byte in text.encode()]


# --- mrpc ------------------------------------------------------------------------------------------


def test_mrpc_is_learnt(train, folder):
    """The label stands in the pairs: whether the number in them is odd."""
    run = train(
        "model=bert_tiny",
        "data=mrpc",
        f"data.path={folder('mrpc', '.parquet')}",
        "data.seq_len=64",
        "data.samples=null",
        "data.eval_samples=null",
        "batch.per_device=12",
        "train.max_steps=40",
        "train.learning_rate=0.01",
        "train.schedule=constant",
    ).record
    assert run.training.losses[0] > 0.6 and run.training.final_loss < 0.2
    assert run.evaluation.samples == 6 and run.evaluation.accuracy == 1


def test_a_pair_in_bytes_is_joined_by_the_end_id(folder):
    rows = built("data=mrpc", f"data.path={folder('mrpc', '.parquet')}", "data.seq_len=64", "data.samples=null")
    assert len(rows.train) == 12 and rows.classes == 2
    assert set(rows.train.column_names) == {"input_ids", "labels"}
    for row, pair in zip(rows.train, PAIRS):
        assert row["input_ids"].tolist() == in_bytes(pair["sentence1"]) + [0] + in_bytes(pair["sentence2"])
        assert row["labels"].tolist() == pair["label"]
    assert any("of a row, and not idx" in line for line in rows.warnings)
    batch = rows.collate([rows.train[0], rows.train[10]])  # the shorter is padded, to a multiple of 8
    assert batch["input_ids"].shape == (2, 48) and batch["labels"].tolist() == [0, 0]
    assert batch["attention_mask"].sum(1).tolist() == [len(rows.train[n]["input_ids"]) for n in (0, 10)]


@pytest.mark.parametrize(
    "first,second,longest,kept",
    [
        ("abcdef", "uvwxyz", 14, ("abcdef", "uvwxyz")),
        ("abcdef", "uvwxyz", 13, ("abcdef", "uvwxyz")),
        ("abcdef", "uvwxyz", 8, ("abcd", "uvw")),
        ("abcdef", "u", 6, ("abcd", "u")),
        ("a", "uvwxyz", 6, ("a", "uvwx")),
        ("abcdef", "uvwxyz", 2, ("a", "")),
    ],
)
def test_the_longer_text_of_a_pair_is_cut_first(first, second, longest, kept):
    row, cut = tokens.Tokens("bytes").pair(first, second, longest)
    assert row["input_ids"].tolist() == in_bytes(kept[0]) + [0] + in_bytes(kept[1])
    assert cut == ((first, second) != kept)


def test_encoders_alone_get_token_types(folder, words):
    path, names = words
    told = ["data=mrpc", f"data.path={folder('mrpc', '.jsonl')}", f"data.tokenizer={path}", "data.samples=null"]
    encoder, decoder = (built(f"model={name}", *told) for name in ("bert_tiny", "gpt2_tiny"))
    for row, other, pair in zip(encoder.train, decoder.train, PAIRS):
        one, two = pair["sentence1"].split(), pair["sentence2"].split()
        assert [names[i] for i in row["input_ids"]] == ["[CLS]", *one, "[SEP]", *two, "[SEP]"]
        assert row["token_type_ids"].tolist() == [0] * (len(one) + 2) + [1] * (len(two) + 1)
        assert other["input_ids"].tolist() == row["input_ids"].tolist() and "token_type_ids" not in other
    assert encoder.collate([encoder.train[0], encoder.train[1]])["token_type_ids"].shape == (2, 16)
    assert [names[i] for i in built(*told, "data.seq_len=8").train[0]["input_ids"]] == (
        ["[CLS]", "The", "0", "[SEP]", "0", "dogs", "ran", "[SEP]"]
    )


# --- wikitext --------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", data_sources.SUFFIXES)
def test_the_rows_of_wikitext_are_the_lines_of_one_text(folder, suffix):
    rows = built("model=gpt2_tiny", "data=wikitext", f"data.path={folder('wikitext', suffix)}", "data.samples=null")
    blank = " \n" if suffix == ".txt" else ""  # the hub's rows have lost them
    whole = in_bytes("".join(line or blank for line in LINES))
    ids = [row["input_ids"].tolist() for row in rows.train]
    assert sum(ids, []) == whole and {len(i) for i in ids[:-1]} == {32}
    assert all(row["labels"].tolist() == i for row, i in zip(rows.train, ids))
    assert rows.warnings == [], "an empty line of one long text takes nothing away"
    assert (
        sum((row["input_ids"].tolist() for row in rows.eval), [])
        == in_bytes("".join(line or blank for line in LINES[:6]))[: 4 * 32]
    )


def test_lines_of_wikitext_get_no_special_tokens(folder, words):
    path, names = words
    rows = built(
        "model=gpt2_tiny",
        "data=wikitext",
        f"data.path={folder('wikitext', '.csv')}",
        "data.samples=null",
        f"data.tokenizer={path}",
    )
    ids = sum((row["input_ids"].tolist() for row in rows.train), [])
    assert len(ids) == sum(len(line.split()) for line in LINES) and not {1, 2} & set(ids)


def test_samples_limit_the_rows(folder):
    pairs = built("data=mrpc", f"data.path={folder('mrpc', '.csv')}", "data.samples=3", "data.eval_samples=2")
    blocks = built(
        "model=gpt2_tiny",
        "data=wikitext",
        f"data.path={folder('wikitext', '.csv')}",
        "data.samples=3",
        "data.eval_samples=2",
    )
    assert [len(rows) for rows in (pairs.train, pairs.eval, blocks.train, blocks.eval)] == [3, 2, 3, 2]


# --- the hub ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name,repository,columns",
    [
        ("mrpc", "nyu-mll/glue", ["sentence1, sentence2 and label"]),
        ("wikitext", "Salesforce/wikitext", ["column text"]),
    ],
)
def test_a_published_data_set_without_a_network_is_refused(train, name, repository, columns):
    error = train("model=gpt2_tiny", f"data={name}", status="refused").record.error
    for word in (f"data={name}", repository, "data.path=", "train*", "validation*", ".parquet", *columns):
        assert word in error.message
    assert "\n" not in error.message and (".txt" in error.message) == (name == "wikitext")


def test_the_hub_is_asked_for_the_right_data_set(monkeypatch):
    asked = []
    features = datasets.Features(
        {
            "sentence1": datasets.Value("string"),
            "sentence2": datasets.Value("string"),
            "label": datasets.ClassLabel(names=["no", "yes"]),
            "idx": datasets.Value("int32"),
        }
    )
    hub = datasets.Dataset.from_list(PAIRS, features=features)
    monkeypatch.setattr(datasets, "load_dataset", lambda *a, **k: asked.append((a, k)) or [hub, hub.select(range(3))])
    rows = built("data=mrpc", "data.samples=null", "data.eval_samples=null")
    assert asked == [(("nyu-mll/glue", "mrpc"), {"split": ["train", "validation"]})]
    assert (len(rows.train), len(rows.eval), rows.classes) == (12, 3, 2)
    assert [row["labels"].item() for row in rows.eval] == [0, 1, 0]


# --- files that do not do --------------------------------------------------------------------------


def one_problem(*overrides: str) -> str:
    problems = compose(*small(*overrides)).problems
    assert len(problems) == 1 and "\n" not in problems[0], problems
    return problems[0]


def test_folders_without_data_are_refused_early(folder, tmp_path):
    write(tmp_path / "train.csv", PAIRS)
    assert "begins with validation" in one_problem("data=mrpc", f"data.path={tmp_path}")
    assert "no labels" in one_problem("data=mrpc", f"data.path={folder('wikitext', '.txt')}")
    assert "there is no such" in one_problem("model=gpt2_tiny", "data=wikitext", "data.path=nowhere")
    write(tmp_path / "validation.jsonl", PAIRS)
    assert ".csv, .jsonl" in one_problem("data=mrpc", f"data.path={tmp_path}")


def test_a_missing_column_of_mrpc_is_refused(tmp_path):
    rows = [{key: value for key, value in row.items() if key != "sentence2"} for row in PAIRS]
    for split in ("train", "validation"):
        write(tmp_path / f"{split}.parquet", rows)
    with pytest.raises(Refusal, match="no column sentence2: it has .*sentence1, sentence2 and label"):
        built("data=mrpc", f"data.path={tmp_path}")


def test_files_that_are_cut_off_are_one_line(folder):
    place = folder("mrpc", ".parquet")
    file = next(place.glob("train*"))
    file.write_bytes(file.read_bytes()[:-40])
    with pytest.raises(Refusal, match="cannot be read") as caught:
        built("data=mrpc", f"data.path={place}")
    assert "\n" not in str(caught.value)


# --- .parquet for text -----------------------------------------------------------------------------


@pytest.mark.parametrize("name,told", [("bert_tiny", []), ("gpt2_tiny", []), ("bert_tiny", ["data.samples=5"])])
def test_text_reads_parquet_as_it_reads_jsonl(tmp_path, name, told):
    rows = [{"text": row["sentence1"], "label": row["label"]} for row in PAIRS]
    made = []
    for suffix in (".jsonl", ".parquet"):
        write(tmp_path / f"texts{suffix}", rows)
        made.append(built(f"model={name}", "data=text", f"data.path={tmp_path / f'texts{suffix}'}", *told))
    for part in ("train", "eval"):
        one, two = ([{k: v.tolist() for k, v in row.items()} for row in getattr(m, part)] for m in made)
        assert one == two and one


# --- perplexity with a sliding window --------------------------------------------------------------


def rows_of(tokens, *settings) -> list[tuple[list[int], list[int]]]:
    return [(row["input_ids"].tolist(), row["labels"].tolist()) for row in rows.windows(tokens, *settings)[0]]


def scored(ids: list[int], labels: list[int]) -> list[int]:
    """The tokens of a row that a causal model's loss counts: the first has nothing to be predicted from."""
    return [i for i, label in zip(ids[1:], labels[1:]) if label != collate.IGNORE_INDEX]


@pytest.mark.parametrize(
    "count,window,stride",
    [(100, 16, 4), (100, 16, 15), (97, 10, 3), (50, 64, 8), (16, 16, 8), (17, 16, 8), (100, 2, 1), (2, 16, 8)],
)
def test_windows_score_every_token_but_the_very_first_once(count, window, stride):
    tokens = torch.arange(count).numpy()  # a token's id is its place
    rows = rows_of(tokens, window, stride)
    assert sum((scored(*row) for row in rows), []) == list(range(1, count))
    for number, (ids, labels) in enumerate(rows):
        assert ids == list(range(number * stride, min(number * stride + window, count)))
        assert all(label in (i, collate.IGNORE_INDEX) for i, label in zip(ids, labels))
        assert all(i - ids[0] >= min(i, window - stride) for i in scored(ids, labels))  # context


@pytest.mark.parametrize("window,stride", [(16, 4), (16, 16), (32, 8), (8, 8), (8, 4)])
def test_windows_over_spans_look_back_before_each_span(window, stride):
    """As for data=source, whose passages lie spread over a stream."""
    tokens, spans = torch.arange(200).numpy(), [(0, 16), (48, 64), (184, 200)]
    rows = rows_of(tokens, window, stride, spans)
    wanted = [
        i
        for first, last in spans
        for i in range(first, last)
        if (i > 0 if stride < window else (i - first) % window > 0)
    ]
    assert sum((scored(*row) for row in rows), []) == wanted
    assert all(i - ids[0] >= min(i, window - stride) for ids, labels in rows for i in scored(ids, labels))


def by_hand(path, tokens: list[int], window: int, stride: int) -> float:
    """Mean loss over a stream, one token and one forward pass at a time, with a window of the guide's."""
    from transformers import AutoModelForCausalLM

    network = AutoModelForCausalLM.from_pretrained(path).eval()
    losses = []
    for place in range(1, len(tokens)):
        begin = max(0, math.ceil((place + 1 - window) / stride)) * stride  # of the first window that holds the place
        if begin == place:
            continue  # the first of a window without overlap
        with torch.no_grad():
            logits = network(torch.tensor([tokens[begin:place]])).logits[0, -1]
        losses.append(-torch.log_softmax(logits.double(), -1)[tokens[place]].item())
    return sum(losses) / len(losses)


@pytest.fixture(scope="module")
def article(tmp_path_factory):
    """wikitext in .txt files, and the tokens of its validation file."""
    path = tmp_path_factory.mktemp("article")
    (path / "train.txt").write_text("".join(LINES))
    text = "".join(LINES)[:171]
    (path / "validation.txt").write_text(text)
    return path, in_bytes(text)


@pytest.mark.slow_for("llama_tiny-24-7", "mixtral_tiny-48-47")
@pytest.mark.parametrize("name,window,stride", [("gpt2_tiny", 32, 8), ("llama_tiny", 24, 7), ("mixtral_tiny", 48, 47)])
def test_the_perplexity_is_that_of_one_token_at_a_time(train, article, name, window, stride):
    path, tokens = article
    run = train(
        f"model={name}",
        "data=wikitext",
        f"data.path={path}",
        "data.eval_samples=null",
        "save.final=true",
        f"eval.window={window}",
        f"eval.stride={stride}",
        "train.max_steps=4",
        "train.learning_rate=0.01",
    )
    loss = by_hand(run.folder / "model", tokens, window, stride)
    assert run.record.evaluation.loss == pytest.approx(loss, rel=1e-5)
    assert run.record.evaluation.perplexity == pytest.approx(math.exp(loss), rel=1e-4)
    assert loss != pytest.approx(by_hand(run.folder / "model", tokens, 32, 32), rel=1e-4)  # it matters


@pytest.mark.slow
def test_the_evaluation_of_text_and_source_slides_too(train, tmp_path):
    (tmp_path / "eval.txt").write_text("".join(LINES))
    text = ["model=gpt2_tiny", "data=text", f"data.path={tmp_path}/eval.txt", f"data.eval_path={tmp_path}/eval.txt"]
    source = ["model=gpt2_tiny", "data=source"]
    for told in (text, source):
        plain, slid = (built(*told, *more).eval for more in ([], ["eval.stride=8"]))
        count = [
            sum(len(scored(row["input_ids"].tolist(), row["labels"].tolist())) for row in part)
            for part in (plain, slid)
        ]
        assert len(slid) > 3 * len(plain)
        # The tokens that had no context without the overlap; the passages of source do not begin its files
        # but for the first.
        assert count[1] == count[0] + len(plain) - 1
        losses = [train(f"recipe={recipe}", *told, "eval.stride=8").record.evaluation.loss for recipe in RECIPES]
        assert losses[0] == pytest.approx(losses[1], rel=1e-5)


@pytest.mark.parametrize(
    "overrides,words",
    [
        (["model=gpt2_tiny", "eval.stride=8"], "data=dummy has no text"),
        (["model=gpt2_tiny", "data=source", "eval.window=65"], "eval.window=65 is longer than model.positions=64"),
        (["model=gpt2_tiny", "data=source", "eval.window=16", "eval.enabled=false"], "eval.enabled=false"),
        (["model=bert_tiny", "data=mrpc", "eval.window=16"], "is for causal language models"),
    ],
)
def test_a_window_that_cannot_be_is_refused(overrides, words):
    assert any(words in problem for problem in compose(*small(*overrides)).problems)


def test_a_window_without_an_evaluation_is_refused(train):
    told = ["model=gpt2_tiny", "data=source", "data.eval_samples=null", "eval.stride=8"]
    error = train(*told, status="refused").record.error
    assert "eval.stride" in error.message and "\n" not in error.message


# --- mixtral ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_only_used_experts_take_arithmetic(train):
    """The guide's sparsity: more parameters for the same compute."""
    told = ["model=mixtral_tiny", "data=source"]
    base, more, used = (
        train(*told, f"model.experts={experts}", f"model.experts_per_token={k}").record
        for experts, k in ((4, 1), (8, 1), (4, 2))
    )
    router, tokens = 32, 2 * 32  # width; batch x seq_len
    one = 3 * 32 * 64  # weights of an expert: gate, up and down
    assert more.memory.parameter_count - base.memory.parameter_count == 4 * (one + router)
    assert used.memory.parameter_count == base.memory.parameter_count
    # Forward 2 FLOPs a weight and token, backward twice that; four more experts are four more rows in the router.
    assert more.speed.model_flops_per_step - base.speed.model_flops_per_step == 3 * 2 * tokens * 4 * router
    assert used.speed.model_flops_per_step - base.speed.model_flops_per_step == 3 * 2 * tokens * one


def test_the_experts_listen_to_autocast():
    """The library's own grouped product would leave them in 32 bits without a word."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(
        "mixtral",
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        vocab_size=64,
        num_attention_heads=2,
        num_key_value_heads=1,
        num_local_experts=4,
    )
    network = AutoModelForCausalLM.from_config(config, experts_implementation=moe.register())
    ids = torch.arange(64).view(2, 32)
    layer = network.model.layers[0].mlp.experts
    seen, results = [], {}
    layer.act_fn.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].dtype))
    for name in (moe.NAME, "eager"):  # eager is one expert after another, by torch's plain linear
        network.set_experts_implementation(name)
        for enabled in (False, True):
            network.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
                loss = network(ids, labels=ids).loss
            loss.backward()
            results[name, enabled] = loss.item(), layer.gate_up_proj.grad.norm().item()
    assert seen[0] == torch.float32 and seen[1] == torch.bfloat16
    for enabled, close in ((False, 1e-5), (True, 1e-2)):
        assert results[moe.NAME, enabled] == pytest.approx(results["eager", enabled], rel=close)
