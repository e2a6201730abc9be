"""What the scripts of program_cases_more.py train on."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import program_data as data


def masks(folder: Path) -> None:
    """Pictures and their masks, as Pytorch-UNet finds them."""
    from PIL import Image

    source = np.random.default_rng(0)
    (folder / "data" / "masks").mkdir(parents=True)
    for number in range(24):
        data.picture(folder / "data" / "imgs" / f"{number}.png", source, 64)
        mask = Image.fromarray(source.integers(0, 2, (64, 64), dtype=np.uint8) * 255)
        mask.save(folder / "data" / "masks" / f"{number}.png")


def camvid(folder: Path) -> None:
    """Pictures and masks of one channel, as the dataset CamVid has them."""
    from PIL import Image

    source = np.random.default_rng(0)
    place = folder / "examples" / "binary_segmentation_data" / "dataset" / "CamVid"
    for split in ("train", "val", "test"):
        (place / f"{split}annot").mkdir(parents=True)
        for number in range(32 if split == "train" else 2):
            data.picture(place / split / f"{number}.png", source)
            mask = Image.fromarray(source.integers(0, 12, (80, 80), dtype=np.uint8))
            mask.save(place / f"{split}annot" / f"{number}.png")


def resnet34(folder: Path) -> None:
    """The encoder's weights as the hub's cache keeps them."""
    import segmentation_models_pytorch as smp  # pyright: ignore[reportMissingImports]
    from safetensors.torch import save_file

    settings = smp.encoders.encoders["resnet34"]["pretrained_settings"]["imagenet"]
    place = folder / "hub" / f"models--{settings['repo_id'].replace('/', '--')}"
    (place / "snapshots" / settings["revision"]).mkdir(parents=True)
    weights = smp.encoders.get_encoder("resnet34", weights=None).state_dict()
    save_file(weights, place / "snapshots" / settings["revision"] / "model.safetensors")
    (place / "snapshots" / settings["revision"] / "config.json").write_text("{}")


def tokens(folder: Path) -> None:
    """llama2.c's own format: tokens as 16-bit numbers, of a vocabulary of 128."""
    source = np.random.default_rng(0)
    (folder / "data" / "tok128").mkdir(parents=True)
    for number in range(2):
        source.integers(0, 128, 20_000).astype(np.uint16).tofile(folder / "data" / "tok128" / f"data{number:02d}.bin")


def colours(folder: Path) -> None:
    source = np.random.default_rng(0)
    for split in ("train", "test"):
        for number in range(32):
            data.picture(folder / "dataset" / "BSDS300" / "images" / split / f"{number}.jpg", source)


def conditioned(folder: Path) -> None:
    source, words = np.random.default_rng(0), random.Random(0)
    lines = []
    for number in range(16):
        for kind in ("a", "b"):
            data.picture(folder / "conditioned" / "train" / f"{kind}{number}.png", source)
        lines.append(
            {
                "file_name": f"a{number}.png",
                "conditioning_image_file_name": f"b{number}.png",
                "text": data.sentence(words),
            }
        )
    (folder / "conditioned" / "train" / "metadata.jsonl").write_text("\n".join(map(json.dumps, lines)))


def roberta(folder: Path) -> None:
    from transformers import RobertaConfig, RobertaForSequenceClassification

    place = folder / "distilbert" / "distilroberta-base"
    tokenizer: Any = data.byte_tokenizer(place, 96)
    config = RobertaConfig(
        vocab_size=len(tokenizer), hidden_size=128, num_hidden_layers=2, num_attention_heads=4, intermediate_size=256,
        max_position_embeddings=128, pad_token_id=1,
    )  # fmt: skip
    RobertaForSequenceClassification(config).save_pretrained(place)


def bart(folder: Path) -> None:
    from transformers import BartConfig, BartForConditionalGeneration

    place = folder / "facebook" / "bart-base"
    tokenizer: Any = data.byte_tokenizer(place)
    halves: dict[str, Any] = {
        f"{half}_{name}": value
        for half in ("encoder", "decoder")
        for name, value in (("layers", 2), ("attention_heads", 4), ("ffn_dim", 256))
    }
    config = BartConfig(
        vocab_size=len(tokenizer), d_model=128, max_position_embeddings=512, pad_token_id=1, bos_token_id=0,
        eos_token_id=0, decoder_start_token_id=0, forced_eos_token_id=0, **halves,
    )  # fmt: skip
    BartForConditionalGeneration(config).save_pretrained(place)


def news(folder: Path) -> None:
    made = data.rows(lambda source: {"text": data.text(source, 3), "label": source.randint(0, 2)}, 1400)
    data.dataset(folder / "zeroshot" / "twitter-financial-news-sentiment", made)


def words(folder: Path) -> None:
    """The text of Lightning's demonstration, of which it keeps 4000 rows of 35 words apart."""
    source = random.Random(0)
    (folder / "data").mkdir()
    (folder / "data" / "wikitext-2.txt").write_text("\n".join(data.text(source) for _ in range(9000)))


# Need -> what makes it in the folder of a case.
MORE_MAKERS: dict[str, Callable[[Path], None]] = {
    "../../data/mnist/MNIST": lambda folder: data.mnist(folder.parents[1] / "data" / "mnist" / "MNIST"),
    "data/masks": masks,
    "CamVid": camvid,
    "resnet34": resnet34,
    "data/tok128": tokens,
    "dataset/BSDS300": colours,
    "conditioned": conditioned,
    "distilbert/distilroberta-base": roberta,
    "facebook/bart-base": bart,
    "zeroshot/twitter-financial-news-sentiment": news,
    "data/wikitext": words,
}
