"""The data of the frameworks with formats of their own, and by what name each need of a case is made."""

from __future__ import annotations

import json
import pickle
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import program_data as data


def litgpt(folder: Path) -> None:
    """A checkpoint of litgpt's smallest Pythia, with the tokenizer of program_data."""
    import sys

    import torch

    sys.path.insert(0, str(folder))
    from litgpt import GPT, Config  # pyright: ignore[reportMissingImports]
    from litgpt.utils import save_config  # pyright: ignore[reportMissingImports]

    place = folder / "checkpoint"
    data.byte_tokenizer(place)
    (place / "generation_config.json").write_text(json.dumps({"bos_token_id": 0, "eos_token_id": 0}))
    config = Config.from_name("pythia-14m")
    save_config(config, place)
    torch.save(GPT(config).state_dict(), place / "lit_model.pth")


def plain(folder: Path) -> None:
    source = random.Random(0)
    (folder / "plain").mkdir()
    for number in range(4):
        (folder / "plain" / f"{number}.txt").write_text("\n".join(data.text(source) for _ in range(200)))


def letters(folder: Path) -> None:
    """nanoGPT's own format: the tokens as 16-bit numbers."""
    place = folder / "data" / "letters"
    place.mkdir(parents=True)
    source = np.random.default_rng(0)
    for split in ("train", "val"):
        source.integers(0, 60, 20_000).astype(np.uint16).tofile(place / f"{split}.bin")
    (place / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": 65}))


def nanochat(folder: Path) -> None:
    """nanochat's tokenizer, the lengths of its tokens, and two files of text."""
    import pyarrow
    import pyarrow.parquet
    import tiktoken  # pyright: ignore[reportMissingImports]
    import torch

    place = folder / "nanochat_base"
    (place / "tokenizer").mkdir(parents=True)
    special = ["bos", "user_start", "user_end", "assistant_start", "assistant_end", "python_start", "python_end"]
    special = [f"<|{name}|>" for name in [*special, "output_start", "output_end"]]
    encoding = tiktoken.Encoding(
        name="rustbpe",
        pat_str=r"\w+|\s+|[^\w\s]+",
        mergeable_ranks={bytes([number]): number for number in range(256)},
        special_tokens={name: 256 + number for number, name in enumerate(special)},
    )
    (place / "tokenizer" / "tokenizer.pkl").write_bytes(pickle.dumps(encoding))
    torch.save(torch.ones(256 + len(special), dtype=torch.int32), place / "tokenizer" / "token_bytes.pt")
    (place / "base_data_climbmix").mkdir()
    source = random.Random(0)
    for number in range(2):
        table = pyarrow.table({"text": [data.text(source) * 4 for _ in range(400)]})
        pyarrow.parquet.write_table(
            table, place / "base_data_climbmix" / f"shard_{number:05d}.parquet", row_group_size=50
        )


def text_file(*names: str) -> Callable[[Path], None]:
    """Files of plain lines."""

    def make(folder: Path) -> None:
        for name in names:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            source = random.Random(name)
            (folder / name).write_text("O God, O God!\n" + "\n".join(data.text(source) for _ in range(200)))

    return make


def similar(folder: Path) -> None:
    """The sentence pairs of sentence-transformers/stsb."""
    made = data.rows(
        lambda source: {"sentence1": data.text(source, 2), "sentence2": data.text(source, 2), "score": 0.5}
    )
    data.dataset(folder / "sentence-transformers" / "stsb", made, ("train", "validation", "test"))


def preference(source: random.Random) -> dict:
    prompt = [{"role": "user", "content": data.text(source, 3)}]
    return {"prompt": prompt} | {
        name: [{"role": "assistant", "content": data.text(source)}] for name in ("chosen", "rejected")
    }


def kto(source: random.Random) -> dict:
    prompt, answer = data.talk(source)
    return {"prompt": [prompt], "completion": [answer], "label": source.random() < 0.5}


def instruction(source: random.Random) -> dict:
    return {"instruction": data.text(source, 2), "input": "", "output": data.text(source)}


def instructions(folder: Path) -> None:
    made = data.rows(instruction)
    data.dataset(folder / "instructions", made)
    (folder / "instructions.json").write_text(json.dumps(made))


def of_rows(name: str, make: Callable[[random.Random], dict]) -> Callable[[Path], None]:
    return lambda folder: data.dataset(folder / name, data.rows(make))


# Need -> what makes it in the folder of a case.
MAKERS: dict[str, Callable[[Path], None]] = {
    "../data/MNIST": lambda folder: data.mnist(folder.parent / "data" / "MNIST"),
    "Datasets/MNIST": lambda folder: data.mnist(folder / "Datasets" / "MNIST"),
    "examples/Datasets/MNIST": lambda folder: data.mnist(folder / "examples" / "Datasets" / "MNIST"),
    "data/MNIST": lambda folder: data.mnist(folder / "data" / "MNIST"),  # Lightning downloads it there besides
    "bert-base-cased": data.bert,
    "nyu-mll/glue": data.glue,
    "glue": data.metric,
    "cora": data.cora,
    "images": data.images,
    "flat": data.flat,
    "pets": data.pets,
    "captioned": data.captioned,
    "resnet50d": data.resnet,
    "unet": data.unet,
    "diffusion": data.diffusion,
    "llama": data.llama,
    "chat": of_rows("chat", lambda source: {"messages": data.talk(source)}),
    "preference": of_rows("preference", preference),
    "kto": of_rows("kto", kto),
    "prompts": of_rows("prompts", lambda source: {"prompt": data.talk(source)[:1]}),
    "texts": of_rows("texts", lambda source: {"text": data.text(source)}),
    "instructions": instructions,
    "checkpoint": litgpt,
    "plain": plain,
    "data/letters": letters,
    "nanochat_base": nanochat,
    "input.txt": text_file("input.txt"),
    "wikitext": text_file(*(f"wikitext/{split}.txt" for split in ("train", "valid", "test"))),
    "sentence-transformers/stsb": similar,
}
