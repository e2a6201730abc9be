"""What scripts/evidence/frameworks.py asks of each framework: a folder with a model and rows, a command, our overrides.

The model is a Llama of 8 layers (TinyLlama's sizes otherwise) without weights, with a tokenizer of its own words. Every
row fills 512 tokens, so that no batch is padded.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path

import yaml

from legroom.options import other_trainers

MODEL, ROWS, TOKENS, BATCH = "llama", 64, 512, 2
RANK = 16
WORDS = 31_996  # and four special tokens
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "dtype": "bfloat16",
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 8,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "max_position_embeddings": 2048,
    "vocab_size": WORDS + 4,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
ZERO_2, BUCKET = "zero2.json", 500_000_000  # elements that DeepSpeed reduces at a time unless it is told otherwise
TRAINER_ZERO_2 = "zero2_trainer.json"
DEEPSPEED = {
    "train_micro_batch_size_per_gpu": BATCH,
    "gradient_accumulation_steps": 1,
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 2},
    "gradient_clipping": 1.0,
    "zero_allow_untested_optimizer": True,
}
# Of torch, since DeepSpeed compiles its own for a GPU that is there; transformers' Trainer makes its own.
OPTIMIZER = {"type": "AdamW", "params": {"lr": 2.0e-5, "torch_adam": True}}
FULL, LORA, QLORA = "full", "LoRA", "QLoRA"
TRAINER_SCRIPT = Path(__file__).with_name("framework_trainer.py")
NOT_COMPARED = (
    "hydra.",
    "data",
    "model.pretrained",
    "train.",
    "tracker",
    "accumulation",
    "parallelism",
)  # of a reading
SAME_FOR_ALL = [f"model.pretrained={MODEL}", "data=chat", f"data.seq_len={TOKENS}", f"batch.per_device={BATCH}"]
TRAINER = ["--per_device_train_batch_size", str(BATCH), "--report_to", "none", "--output_dir", "out"]


@dataclass(frozen=True)
class Case:
    """One training. framework: its title. needs: the environment that it runs in, of scripts/evidence/frameworks.py.

    command: behind `legroom check --`, in the folder of the cases. overrides: ours, without what all have in common.
    """

    framework: str
    method: str
    needs: str
    command: tuple[str, ...]
    overrides: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.framework}, {self.method}"


def write_material(folder: Path) -> None:
    """Write what the commands read."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    (folder / MODEL).mkdir(parents=True)
    (folder / MODEL / "config.json").write_text(json.dumps(CONFIG))
    words = ["<pad>", "<s>", "</s>", "<unk>", *(f"w{number}" for number in range(WORDS))]
    tokenizer = Tokenizer(models.WordLevel({word: at for at, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()  # pyright: ignore[reportAttributeAccessIssue]
    names = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained(folder / MODEL)
    rng = random.Random(0)

    def text(length: int) -> str:
        return " ".join(f"w{rng.randrange(WORDS)}" for _ in range(length))

    longer = [{"text": text(TOKENS + 100)} for _ in range(ROWS)]
    whole = [{"text": text(TOKENS - 1)} for _ in range(ROWS)]  # axolotl adds an end, and makes rows of what is cut off
    alpaca = [{"instruction": text(100), "input": "", "output": text(TOKENS)} for _ in range(ROWS)]
    for name, rows in (("longer", longer), ("whole", whole), ("tatsu-lab/alpaca", alpaca)):
        (folder / name).mkdir(parents=True)
        (folder / name / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "alpaca.json").write_text(json.dumps(alpaca))
    (folder / "dataset_info.json").write_text(json.dumps({"alpaca": {"file_name": "alpaca.json"}}))
    for method in (FULL, LORA, QLORA):
        (folder / f"factory_{method}.yaml").write_text(yaml.safe_dump(llama_factory(method)))
        (folder / f"axolotl_{method}.yaml").write_text(yaml.safe_dump(axolotl(method)))
    (folder / ZERO_2).write_text(json.dumps({**DEEPSPEED, "optimizer": OPTIMIZER}))
    (folder / TRAINER_ZERO_2).write_text(json.dumps(DEEPSPEED))


def llama_factory(method: str) -> dict:
    """The settings of its examples (examples/train_lora, train_qlora and train_full) for SFT."""
    settings = {
        "model_name_or_path": MODEL,
        "stage": "sft",
        "do_train": True,
        "finetuning_type": "full" if method == FULL else "lora",
        "dataset": "alpaca",
        "dataset_dir": ".",
        "template": "default",
        "cutoff_len": TOKENS,
        "output_dir": "out",
        "per_device_train_batch_size": BATCH,
        "bf16": True,
        "report_to": "none",
    }
    if method != FULL:
        settings |= {"lora_rank": 8, "lora_target": "all"}
    if method == QLORA:
        settings |= {"quantization_bit": 4, "quantization_method": "bnb"}
    return settings


def axolotl(method: str) -> dict:
    """The settings of its examples (examples/llama-3) for one GPU."""
    settings = {
        "base_model": MODEL,
        "datasets": [{"path": "whole/train.jsonl", "ds_type": "json", "type": "completion", "field": "text"}],
        "sequence_len": TOKENS,
        "micro_batch_size": BATCH,
        "gradient_accumulation_steps": 1,
        "num_epochs": 1,
        "optimizer": "adamw_torch_fused",
        "learning_rate": 2.0e-4,
        "bf16": "auto",
        "gradient_checkpointing": True,
        "output_dir": "out",
        "dataset_prepared_path": f"prepared_{method}",
    }
    if method != FULL:
        adapter = "lora" if method == LORA else "qlora"
        settings |= {"adapter": adapter, "lora_r": RANK, "lora_alpha": 2 * RANK, "lora_target_linear": True}
    if method == QLORA:
        settings["load_in_4bit"] = True
    return settings


def cases() -> list[Case]:
    """Every training that is compared."""
    return [*_peft(), *_trl(), *_axolotl(), *_llama_factory(), *_deepspeed()]


def _of_trainer(method: str) -> tuple[str, ...]:
    return ("--method", method, "--model", MODEL, *TRAINER, "--bf16", "true")


def _peft() -> list[Case]:
    """framework_trainer.py: peft's LoraConfig of rank 16 on all linear layers, in transformers' Trainer with bf16."""
    adapter = ["precision=bf16", "optim=adamw_fused"]
    typed = {
        FULL: ["precision=bf16", "precision.weights=bf16", "optim=adamw_fused"],
        LORA: ["adapter=lora", *adapter],
        QLORA: ["adapter=qlora", "precision.base=fp32", "checkpointing=full", *adapter],
    }
    listed = []
    for method, overrides in typed.items():
        command = ("python", str(TRAINER_SCRIPT), *_of_trainer(method))
        listed.append(Case("peft, Trainer", method, "hf", command, tuple(overrides)))
    return listed


def _trl() -> list[Case]:
    listed = []
    command = f"trl sft --model_name_or_path {MODEL} --dataset_name longer --max_length {TOKENS} " + " ".join(TRAINER)
    for method, further in ((FULL, ""), (LORA, " --use_peft"), (QLORA, " --use_peft --load_in_4bit")):
        text = command + further
        listed.append(Case("TRL", method, "hf", tuple(text.split()), read(text)))
    return listed


def _axolotl() -> list[Case]:
    listed = []
    for method in (FULL, LORA, QLORA):
        command = ("axolotl", "train", f"axolotl_{method}.yaml")
        listed.append(Case("axolotl", method, "axolotl", command, read(yaml.safe_dump(axolotl(method)))))
    return listed


def _llama_factory() -> list[Case]:
    listed = []
    for method in (FULL, LORA, QLORA):
        command = ("llamafactory-cli", "train", f"factory_{method}.yaml")
        overrides = read(yaml.safe_dump(llama_factory(method)))
        listed.append(Case("LLaMA-Factory", method, "llama_factory", command, overrides))
    return listed


def _deepspeed() -> list[Case]:
    """DeepSpeedExamples' own script for the whole model; and transformers' Trainer under DeepSpeed."""
    example = "finetune_llama.py --model_name llama --lr 2e-5 --batch_size 2 --output_dir out --deepspeed_config"
    launcher = ("deepspeed", "--num_gpus", "2")
    ours = (
        "parallelism=zero",
        "parallelism.num_processes=2",
        f"parallelism.reduce_bucket_size={BUCKET}",
        "precision=bf16",
    )
    listed = [Case("DeepSpeed", FULL, "hf", (*launcher, *example.split(), ZERO_2), ours)]
    typed = {FULL: [], LORA: ["adapter=lora"], QLORA: ["adapter=qlora", "checkpointing=full"]}
    for method, overrides in typed.items():
        command = (*launcher, str(TRAINER_SCRIPT), *_of_trainer(method), "--deepspeed", TRAINER_ZERO_2)
        listed.append(Case("DeepSpeed, Trainer", method, "hf", command, (*overrides, "optim=adamw_fused", *ours)))
    return listed


def read(text: str) -> tuple[str, ...]:
    """The overrides that a framework's settings come to, as the app reads them."""
    reading = other_trainers.read(text)
    return tuple(override for override in reading.overrides if not override.startswith(NOT_COMPARED))
