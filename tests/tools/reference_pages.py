"""Write docs/keys.md from the comments in conf/, docs/record.md from the record's dataclasses, and docs/types.md from
what some configurations resolve to.

python tests/tools/reference_pages.py
"""

from __future__ import annotations

import re
from typing import Any

from checkout import ROOT

import json_schema

from legroom.cli import help_text
from legroom.config import Config
from legroom.options.compose import compose

KEYS, RECORD = ROOT / "docs" / "keys.md", ROOT / "docs" / "record.md"
TYPES = ROOT / "docs" / "types.md"
KEYS_HEAD = """# Keys

Written by `python tests/tools/reference_pages.py` from the comments in `conf/`. Every key can be typed as `key=value`;
`python train.py --help NAME` shows a menu or a section in full. In each menu the first option is the default. `...`
stands for a value that differs between the options; in brackets are the options that a line is about.
"""
RECORD_HEAD = """# The record

Written by `python tests/tools/reference_pages.py`: what `result.json` in a run's folder holds. Programs should read
[its JSON Schema](record.schema.json). Bytes are integers, times are seconds, and units are in the names. Null: this
device or this recipe has no such figure. [Architecture](architecture.md#the-record) says how figures come about.
"""
TYPES_HEAD = """# Types of storage

Written by `python tests/tools/reference_pages.py` from what each line resolves to. `precision` names a combination; the
keys `precision.base`, `precision.weights`, `precision.adapter` and `precision.reduction` change a part of it. Gradients
have the type of the weights that they are of, and AdamW's two states the type of what it changes: the copies where
there are some, otherwise the weights. With qlora the linear layers and the experts of a mixture are in 4 or 8 bits
(`adapter.bits`, `adapter.expert_bits`), and the base of the table is what is not quantised: norms, embeddings, routers,
the output layer. A number in 4 bits takes 0.516 bytes with its scales, or 0.5625 with `adapter.double_quant=false`; one
in 8 bits takes 1 byte, and 4 for each row. What is trained whole beside an adapter (a head, `adapter.modules_to_save`)
has the type of `precision.weights`: fp32 under autocast, where peft leaves it in the type of the base.
[Bytes by part](results/framework_bytes.md) of the frameworks' own defaults stand beside those of the same lines.
"""
COMBINATIONS = {  # overrides -> what is known by it elsewhere
    "precision=fp32": "",
    "precision=tf32": "",
    "precision=bf16": "Trainer's `bf16` over a model in fp32; TRL, LLaMA-Factory",
    "precision=bf16 precision.weights=bf16": "Trainer's `bf16` of a model in bf16; axolotl with flash attention",
    "precision=bf16_pure": "a model and a loop in bf16",
    "precision=fp16": "Trainer's `fp16`",
    "precision=fp8": "Accelerate's fp8 with torchao",
    "adapter=lora precision=fp32": "",
    "adapter=lora precision=bf16": "LoRA of peft's examples, axolotl, LLaMA-Factory",
    "adapter=lora precision=bf16 precision.base=fp32": "LoRA of TRL, whose base is in fp32 unless `dtype` is given",
    "adapter=lora precision=fp16": "",
    "adapter=lora precision=bf16_pure": "peft with `autocast_adapter_dtype=False`",
    "adapter=lora precision=bf16_pure precision.adapter=fp32": "peft in a loop without autocast",
    "adapter=qlora precision=bf16": "QLoRA without `prepare_model_for_kbit_training`",
    "adapter=qlora precision=bf16 adapter.expert_bits=16": "axolotl without `quantize_moe_experts`, LLaMA-Factory",
    "adapter=qlora precision=bf16 adapter.expert_bits=8": "",
    "adapter=qlora precision=bf16 precision.base=fp32": "QLoRA after peft's `prepare_model_for_kbit_training`",
    "adapter=qlora precision=bf16 adapter.double_quant=false precision.base=fp32 precision.adapter=bf16": "TRL",
    "parallelism=fsdp precision=bf16": "torchtitan's defaults",
    "parallelism=fsdp precision=bf16 precision.reduction=bf16": "FSDP2 with Accelerate's `bf16`",
    "parallelism=fsdp adapter=lora precision=bf16": "",
    "parallelism=zero precision=bf16": "DeepSpeed's `bf16: {enabled: true}`",
    "parallelism=zero precision=bf16 precision.weights=fp32": "DeepSpeed's `torch_autocast`",
    "parallelism=zero adapter=lora precision=bf16": "peft with DeepSpeed's bf16",
}
OPTION = re.compile(r"  (?P<name>[^\s=]+)\s+(?P<text>\S.*)")
KEY = re.compile(r"  (?P<name>[\w.]+)=(?P<value>.*?)(?:\s{2,}(?P<text>\S.*))?")
HEADING = re.compile(r"(?P<name>\w+|\+experiment/\w+=)(?:   .*)?")


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    """A Markdown table. Bars and angle brackets inside a cell are escaped."""
    cells = [
        " | ".join(re.sub(r"([|<])", r"\\\1", cell) for cell in row) for row in (head, ("---",) * len(head), *rows)
    ]
    return [f"| {line} |".replace("|  |", "| |") for line in cells] + [""]


def keys_page(text: str) -> str:
    """docs/keys.md. text: what --help prints."""
    menus, _, sections = text.partition("their options:\n")[2].partition("\nKeys:\n")
    lines = [*KEYS_HEAD.splitlines(), ""]
    options: list[tuple[str, ...]] = []
    keys: list[tuple[str, ...]] = []

    def end_of_menu() -> None:
        for head, rows in ((("option", "what it is"), options), (("key", "default", "meaning"), keys)):
            lines.extend(table(head, rows) if rows else [])
            rows.clear()

    for line in menus.splitlines():
        if heading := HEADING.fullmatch(line):
            end_of_menu()
            lines.extend([f"## {heading['name']}", ""])
        elif key := KEY.fullmatch(line):
            keys.append((f"`{key['name']}`", f"`{key['value']}`", key["text"] or ""))
        elif option := OPTION.fullmatch(line):
            options.append((f"`{option['name']}`", option["text"]))
    end_of_menu()
    lines += ["## Without a menu", ""]
    found = [KEY.fullmatch(line) for line in sections.splitlines()]
    rows = [(f"`{key['name']}`", f"`{key['value']}`", key["text"] or "") for key in found if key]
    return "\n".join([*lines, *table(("key", "default", "meaning"), rows)])


def record_page(schema: dict[str, Any]) -> str:
    """docs/record.md. schema: the JSON Schema of a record."""
    lines = [*RECORD_HEAD.splitlines(), ""]
    parts = {"Record": schema, **schema["$defs"]}
    for name, part in parts.items():
        description = " ".join((part["description"] or "").split())
        lines += [f"## {name}", "", description, ""]
        rows = [(f"`{key}`", kind(value), value.get("description", "")) for key, value in part["properties"].items()]
        lines += table(("field", "type", "meaning"), rows)
    return "\n".join(lines)


def kind(value: dict[str, Any]) -> str:
    """The type of a field in a word or two: `[Model](#model) or null`."""
    if "$ref" in value:
        name = value["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in value:
        return " or ".join(kind(each) for each in value["anyOf"])
    if "enum" in value:
        return ", ".join(f"`{each}`" for each in value["enum"])
    if "const" in value:
        return f"`{value['const']}`"
    named = [value["type"]] if isinstance(value["type"], str) else value["type"]
    of = f" of {kind(value['items'])}" if "items" in value else ""
    return " or ".join(f"{name}{of}" if name == "array" else name for name in named)


def types_page() -> str:
    """docs/types.md."""
    head = ("typed", "frozen base", "trained weights", "adapter", "copies", "passes in", "gradients added up in", "as")
    return "\n".join([*TYPES_HEAD.splitlines(), "", *table(head, [_types(*each) for each in COMBINATIONS.items()])])


def _types(overrides: str, elsewhere: str) -> tuple[str, ...]:
    """A row of docs/types.md."""
    ranks = ["parallelism.num_processes=2"] if "parallelism=" in overrides else []
    cfg, *_ = compose(ROOT / "conf", "recipe=estimate", "gpu=h100_80gb", *ranks, *overrides.split())
    assert cfg is not None, "the line composes"
    types, adapter = cfg.precision, cfg.adapter
    base = types.base or ""
    if adapter.bits:
        layers = "linear layers"
        if adapter.bits_of_experts == adapter.bits:
            layers += " and experts"
        elif adapter.bits_of_experts:
            base += f", experts {adapter.bits_of_experts} bits"
        base += f", {layers} {adapter.bits} bits"
    trained = types.adapter if adapter.is_used else types.weights
    return (
        f"`{overrides}`",
        base,
        "" if adapter.is_used else types.weights or "",
        types.adapter or "",
        types.copies or "",
        _passes(cfg),
        (types.reduction or ("fp32" if types.autocast and cfg.parallelism.sharded else trained) or "") if ranks else "",
        elsewhere,
    )


def _passes(cfg: Config) -> str:
    types = cfg.precision
    if types.copies:
        return "bf16"
    if types.kind == "fp8":
        return "bf16 autocast, products in fp8"
    if types.autocast:
        return f"{types.autocast} autocast"
    return "bf16" if types.kind == "bf16_pure" else types.kind


def pages() -> dict[Any, str]:
    """The file of each page, and what it should hold."""
    return {
        KEYS: keys_page(help_text.describe(ROOT / "conf")),
        RECORD: record_page(json_schema.schema()),
        TYPES: types_page(),
    }


if __name__ == "__main__":
    for file, content in pages().items():
        file.write_text(content)
