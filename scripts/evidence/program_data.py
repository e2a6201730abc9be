"""What public scripts train on, made here: data sets, tokenizers, configurations and weights, without a hub."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROWS = 64
NAMES = ("anna", "ben", "carla", "dora", "emil", "fritz", "gerda", "hans")
THINGS = ("a red kite", "the old mill", "two grey cats", "an iron bridge", "the last train", "a paper boat")
DOES = ("finds", "paints", "sells", "repairs", "remembers", "loses")


def sentence(source: random.Random) -> str:
    return f"{source.choice(NAMES)} {source.choice(DOES)} {source.choice(THINGS)}"


def text(source: random.Random, most: int = 9) -> str:
    return ". ".join(sentence(source) for _ in range(source.randint(1, most)))


def rows(make: Callable[[random.Random], dict], count: int = ROWS) -> list[dict]:
    source = random.Random(0)
    return [make(source) for _ in range(count)]


def dataset(folder: Path, made: list[dict], splits: tuple[str, ...] = ("train", "test")) -> None:
    """JSON lines with which `load_dataset(folder)` finds its splits."""
    folder.mkdir(parents=True)
    for split in splits:
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in made))


def talk(source: random.Random) -> list[dict[str, str]]:
    return [{"role": "user", "content": text(source, 3)}, {"role": "assistant", "content": text(source)}]


# --- tokenizers and language models ---------------------------------------------------------------------


TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def byte_tokenizer(folder: Path, limit: int = 512):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    source = random.Random(1)
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    special = ["<|end|>", "<|pad|>", "<|user|>", "<|assistant|>", "<|system|>"]
    letters = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=1000, special_tokens=special, initial_alphabet=letters, show_progress=False
    )
    made.train_from_iterator([text(source) for _ in range(500)], trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=made,
        eos_token="<|end|>",
        bos_token="<|end|>",
        unk_token="<|end|>",
        pad_token="<|pad|>",
        model_max_length=limit,
    )
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    return tokenizer


def llama(folder: Path) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer: Any = byte_tokenizer(folder / "llama")
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=tokenizer.bos_token_id,
    )
    LlamaForCausalLM(config).save_pretrained(folder / "llama")


def bert(folder: Path) -> None:
    from transformers import BertConfig, BertForSequenceClassification, BertTokenizer

    place = folder / "bert-base-cased"
    place.mkdir()
    letters = sorted("abcdefghijklmnopqrstuvwxyz.")
    known = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{letter}" for letter in letters)]
    (place / "vocab.txt").write_text("\n".join(known))
    BertTokenizer(vocab=str(place / "vocab.txt"), model_max_length=128).save_pretrained(place)
    config = BertConfig(
        vocab_size=512, hidden_size=256, num_hidden_layers=2, num_attention_heads=4, intermediate_size=512
    )
    BertForSequenceClassification(config).save_pretrained(place)


def glue(folder: Path) -> None:
    made = rows(lambda source: {"sentence1": text(source, 2), "sentence2": text(source, 2), "label": 1, "idx": 0}, 256)
    place = folder / "nyu-mll" / "glue"
    dataset(place / "mrpc", made, ("train", "validation", "test"))
    files = [{"split": split, "path": f"mrpc/{split}.jsonl"} for split in ("train", "validation", "test")]
    (place / "README.md").write_text(
        f"---\nconfigs: {json.dumps([{'config_name': 'mrpc', 'data_files': files}])}\n---\n"
    )


METRIC = """
import datasets
import evaluate

class Glue(evaluate.Metric):
    def _info(self):
        features = datasets.Features({"predictions": datasets.Value("int64"), "references": datasets.Value("int64")})
        return evaluate.MetricInfo(description="", citation="", features=features)

    def _compute(self, predictions, references):
        return {"accuracy": sum(a == b for a, b in zip(predictions, references)) / len(predictions)}
"""


def metric(folder: Path) -> None:
    (folder / "glue").mkdir()
    (folder / "glue" / "glue.py").write_text(METRIC)


# --- pictures -------------------------------------------------------------------------------------------


def picture(path: Path, source: np.random.Generator, size: int = 80) -> None:
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(source.integers(0, 255, (size, size, 3), dtype=np.uint8)).save(path)


def images(folder: Path) -> None:
    source = np.random.default_rng(0)
    for split in ("train", "val"):
        for number in range(32):
            picture(folder / "images" / split / ("cat", "dog")[number % 2] / f"{number}.png", source)


def flat(folder: Path) -> None:
    source = np.random.default_rng(0)
    for number in range(16):
        picture(folder / "flat" / f"{number}.png", source)


def pets(folder: Path) -> None:
    source = np.random.default_rng(0)
    for number in range(320):
        picture(folder / "pets" / f"{('cat', 'dog')[number % 2]}_{number}.jpg", source, 64)


def captioned(folder: Path) -> None:
    source, words = np.random.default_rng(0), random.Random(0)
    lines = []
    for number in range(16):
        picture(folder / "captioned" / "train" / f"{number}.png", source)
        lines.append(json.dumps({"file_name": f"{number}.png", "text": sentence(words)}))
    (folder / "captioned" / "train" / "metadata.jsonl").write_text("\n".join(lines))


def mnist(folder: Path) -> None:
    """The files of MNIST, in its own format (IDX): 60,000 and 10,000 digits, all noise."""
    place = folder / "raw"
    place.mkdir(parents=True)
    source = np.random.default_rng(0)
    for name, count in (("train", 60_000), ("t10k", 10_000)):
        sizes = [count, 28, 28]
        head = b"".join(number.to_bytes(4, "big") for number in (2051, *sizes))
        (place / f"{name}-images-idx3-ubyte").write_bytes(head + source.integers(0, 255, sizes, np.uint8).tobytes())
        head = b"".join(number.to_bytes(4, "big") for number in (2049, count))
        (place / f"{name}-labels-idx1-ubyte").write_bytes(head + source.integers(0, 10, count, np.uint8).tobytes())


def cora(folder: Path) -> None:
    source = np.random.default_rng(0)
    place = folder / "cora"
    place.mkdir()
    nodes = 1700  # the script takes 1600 of them for training and testing
    kinds = [f"kind{number % 7}" for number in range(nodes)]
    words = source.integers(0, 2, (nodes, 100))
    (place / "cora.content").write_text(
        "".join(f"{node} {' '.join(map(str, words[node]))} {kinds[node]}\n" for node in range(nodes))
    )
    edges = source.permutation(nodes * nodes)[:5000]
    (place / "cora.cites").write_text("".join(f"{edge // nodes} {edge % nodes}\n" for edge in sorted(edges)))


def resnet(folder: Path) -> None:
    """timm's resnet50d as the hub's cache keeps it."""
    import timm  # pyright: ignore[reportMissingImports]
    from safetensors.torch import save_file

    place = folder / "hub" / "models--timm--resnet50d.ra2_in1k"
    (place / "snapshots" / "0").mkdir(parents=True)
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text("0")
    save_file(timm.create_model("resnet50d").state_dict(), place / "snapshots" / "0" / "model.safetensors")


# --- diffusion ------------------------------------------------------------------------------------------


def unet(folder: Path) -> None:
    from diffusers import UNet2DModel  # pyright: ignore[reportMissingImports]

    UNet2DModel(
        sample_size=32,
        block_out_channels=(32, 64),
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        norm_num_groups=8,
        attention_head_dim=8,
    ).save_pretrained(folder / "unet")


def diffusion(folder: Path) -> None:
    """A Stable Diffusion of a few hundred thousand weights."""
    from diffusers import AutoencoderKL, DDPMScheduler, UNet2DConditionModel  # pyright: ignore[reportMissingImports]
    from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer

    place = folder / "diffusion"
    UNet2DConditionModel(
        sample_size=32,
        block_out_channels=(32, 64),
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=64,
        norm_num_groups=8,
        attention_head_dim=8,
    ).save_pretrained(place / "unet")
    AutoencoderKL(block_out_channels=(32, 64), latent_channels=4, norm_num_groups=8,
                  down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2,
                  ).save_pretrained(place / "vae")  # fmt: skip
    DDPMScheduler().save_pretrained(place / "scheduler")
    letters = "abcdefghijklmnopqrstuvwxyz"
    known = [*letters, *(f"{letter}</w>" for letter in letters), "<|startoftext|>", "<|endoftext|>"]
    (place / "tokenizer").mkdir()
    (place / "tokenizer" / "vocab.json").write_text(json.dumps({word: number for number, word in enumerate(known)}))
    (place / "tokenizer" / "merges.txt").write_text("#version: 0.2\n")
    files = place / "tokenizer"
    CLIPTokenizer(
        vocab=str(files / "vocab.json"), merges=str(files / "merges.txt"), model_max_length=77
    ).save_pretrained(files)
    config = CLIPTextConfig(
        vocab_size=1000, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        bos_token_id=52, eos_token_id=53, pad_token_id=53,
    )  # fmt: skip
    CLIPTextModel(config).save_pretrained(place / "text_encoder")
