"""The whole decision of attention's kernel, what is done to its inputs, and the workspaces, as kept tables."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.known_values import known
from torch.utils._python_dispatch import TorchDispatchMode

from legroom.foresight.fake_gpu import attention
from legroom.foresight.fake_gpu.device import FakeDevice
from legroom.foresight.fake_gpu.fake_storages import DEVICE_TYPE
from legroom.third_party.torch_private import op_name

HALF, BF16, FP32 = torch.float16, torch.bfloat16, torch.float32
CAPABILITIES = [(6, 1), (7, 0), (7, 5), (8, 0), (8, 5), (8, 6), (8, 7), (8, 9), (8, 10), (9, 0), (10, 0), (10, 3)]
CAPABILITIES += [(11, 0), (12, 0), (12, 1), (12, 2)]
# A call in which only this differs from 16 bits, heads of 64, 8 queries of 8 keys, without mask or dropout, trained.
CASES: list[dict[str, Any]] = [
    *({"dtype": dtype} for dtype in (HALF, BF16, FP32, torch.float64)),
    *({"dtype": dtype, "size": size} for dtype in (HALF, FP32) for size in (1, 2, 3, 4, 6, 8, 12, 36)),
    *({"dtype": dtype, "size": size, "mask": True} for dtype in (HALF, BF16, FP32) for size in (2, 4, 8, 12)),
    *({"size": size} for size in (128, 136, 192, 193, 200, 224, 225, 232, 248, 256, 257, 264)),
    *({"size": size, "grad": False} for size in (128, 136, 200, 225, 256, 264)),
    *({"size": size, "dropout": 0.125} for size in (64, 192, 200, 225, 232, 256)),
    *({"grads": grads, "size": 200} for grads in ((1, 0, 0), (0, 1, 0), (0, 0, 1))),
    *({"dropout": dropout} for dropout in (0.1, 0.0625, 0.07, 0.9375, 0.5)),
    *({"queries": queries, "keys": keys} for queries in (1, 2) for keys in (1, 2)),
    *({"queries": queries, "dropout": 0.5} for queries in (1, 2)),
    *({"queries": 4, "causal": causal} for causal in (False, True)),
    {"causal": True},
    *({"value_size": size} for size in (32, 36, 72)),
    *({"value_size": size, "dtype": FP32} for size in (4, 30, 32)),
    *({"mask": True, "causal": causal, "dropout": dropout} for causal in (False, True) for dropout in (0.0, 0.1)),
]


def call(capability, dtype=BF16, size=64, queries=8, keys=8, mask=False, dropout=0.0, causal=False, **more):
    grads = more.get("grads", (more.get("grad", True),) * 3)
    sizes = (size, size, more.get("value_size", size))
    lengths, heads = (queries, keys, keys), (4, more.get("key_heads", 4), more.get("key_heads", 4))
    query, key, value = (
        torch.empty(2, *each[:3], dtype=dtype, device="meta", requires_grad=bool(each[3]))
        for each in zip(heads, lengths, sizes, grads)
    )
    bias = torch.empty(2, 1, queries, keys, dtype=dtype, device="meta") if mask else None
    return attention.Call(query, key, value, bias, dropout, causal, capability)


def written(case: dict[str, Any]) -> str:
    return " ".join(f"{name}={str(value).removeprefix('torch.')}" for name, value in case.items()).replace(", ", ",")


def table(cases: list[dict[str, Any]]) -> str:
    """A line for each case, a column for each capability."""
    head = f"{'':38}" + "".join(f"{f'{major}.{minor}':>10}" for major, minor in CAPABILITIES)
    lines = [
        f"{written(case):38}" + "".join(f"{attention.kernel(call(each, **case)):>10}" for each in CAPABILITIES)
        for case in cases
    ]
    return "\n".join([head, *lines]) + "\n"


def test_the_kernel_of_every_gpu_is_the_kept_one(file_regression):
    file_regression.check(table(CASES), extension=".txt")


@pytest.mark.parametrize("shared", [False, True])
def test_the_kernel_of_heads_that_share_keys_is_the_kept_one(file_regression, monkeypatch, shared):
    """shared: whether the efficient kernel can do it."""
    monkeypatch.setattr(attention, "EFFICIENT_HAS_GQA", shared)
    cases = [{"key_heads": 2}, {"key_heads": 2, "mask": True}, {"key_heads": 2, "dtype": FP32}, {"dtype": FP32}]
    file_regression.check(table(cases), extension=".txt")


def test_the_rules_of_every_gpu_are_the_kept_ones(data_regression):
    data_regression.check({f"{each[0]}.{each[1]}": known(attention.rules(each)) for each in CAPABILITIES})


class Calls(TorchDispatchMode):
    """The operations of attention with their arguments, of a tensor its layout; and the copies that are made for them.
    What torch's own formula by hand does is its own affair."""

    def __init__(self):
        super().__init__()
        self.made: list[Any] = []
        self.copies: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **kwargs or {})
        name = op_name(func)
        if "attention" in name:
            self.made.append({name: [shown(value) for value in args], "named": known(kwargs or {})})
        elif name in ("constant_pad_nd", "where", "_to_copy"):
            self.copies.append(f"{name} {shown(result)}")
        return result


def shown(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return known(value)
    shape, strides = ("x".join(map(str, each)) for each in (value.shape, value.stride()))
    return f"{shape} strides {strides} {str(value.dtype).removeprefix('torch.')}"


def on_gpu(*shape, dtype=BF16, grad=True):
    return torch.empty(shape, dtype=dtype, device=DEVICE_TYPE, requires_grad=grad)


def recorded(run, *given, **named):
    with Calls() as calls:
        out = run(*given, **named)
    out = out[0] if isinstance(out, tuple) else out
    copies = calls.copies if calls.made else []
    return {"calls": calls.made, "copies": copies, "result": f"{tuple(out.shape)} {out.dtype}"}


ATTENDED = {
    "flash": ((8, 0), {}, {}),
    "flash causal dropout scaled": ((8, 0), {}, {"is_causal": True, "dropout_p": 0.1, "scale": 0.5}),
    "flash padded": ((8, 0), {"size": 36}, {}),
    "flash padded by 1": ((8, 0), {"size": 31}, {}),
    "flash without gradient": ((8, 0), {"grad": False}, {}),
    "efficient": ((8, 0), {"dtype": FP32}, {"scale": 0.5}),
    "efficient causal dropout": ((8, 0), {"dtype": FP32}, {"is_causal": True, "dropout_p": 0.1}),
    "efficient without gradient": ((8, 0), {"dtype": FP32, "grad": False}, {}),
    "efficient with a mask": ((8, 0), {}, {"attn_mask": BF16}),
    "efficient with a mask of bool": ((8, 0), {}, {"attn_mask": torch.bool}),
    "efficient with a mask of odd length": ((8, 0), {"keys": 100}, {"attn_mask": BF16}),
    "efficient with a mask of 15": ((8, 0), {"keys": 15}, {"attn_mask": BF16}),
    "efficient with a mask of 17": ((8, 0), {"keys": 17}, {"attn_mask": BF16}),
    "cudnn": ((9, 0), {}, {}),
    "cudnn causal dropout": ((9, 0), {}, {"is_causal": True, "dropout_p": 0.125, "scale": 0.5}),
    "cudnn with a mask of bool": ((9, 0), {"keys": 100}, {"attn_mask": torch.bool}),
    "cudnn without gradient": ((9, 0), {"grad": False}, {}),
    "by hand": ((8, 0), {"dtype": FP32, "size": 30}, {"is_causal": True, "scale": 0.5}),
    "by hand with a mask of bool": ((8, 0), {"dtype": FP32, "size": 30}, {"attn_mask": torch.bool}),
}


def attended(inputs, settings):
    sizes = {"size": 64, "keys": 64, "dtype": BF16, "grad": True} | inputs
    query, key, value = (
        on_gpu(2, 4, length, sizes["size"], dtype=sizes["dtype"], grad=sizes["grad"])
        for length in (64, sizes["keys"], sizes["keys"])
    )
    if "attn_mask" in settings:
        shape = (2, 1, 64, sizes["keys"])
        settings = settings | {"attn_mask": on_gpu(*shape, dtype=settings["attn_mask"], grad=False)}
    return recorded(torch.nn.functional.scaled_dot_product_attention, query, key, value, **settings)


def test_kernels_get_the_kept_arguments(data_regression):
    found = {}
    for capability in ((8, 0), (9, 0)):
        with FakeDevice(capability):
            found |= {name: attended(*case) for name, (of, *case) in ATTENDED.items() if of == capability}
    data_regression.check(found)


PACKAGED = {
    "causal": ({}, {}),
    "not causal": ({}, {"is_causal": False}),
    "causal where the module is not": ({"causal": False}, {"is_causal": True}),
    "the module is not causal": ({"causal": False}, {}),
    "window shorter than the keys": ({}, {"sliding_window": 31}),
    "window of 1": ({}, {"sliding_window": 1}),
    "window on both sides": ({"causal": False}, {"sliding_window": 16}),
    "window of all keys": ({}, {"sliding_window": 32}),
    "dropout scaled": ({}, {"dropout": 0.1, "scaling": 0.5}),
    "padded": ({"size": 36, "width": 36}, {}),
    "values smaller": ({"size": 48, "width": 32}, {}),
    "values larger": ({"size": 32, "width": 41}, {}),
    "32 bits with a linear layer": ({"dtype": FP32}, {}),
    "32 bits in autocast": ({"dtype": FP32, "autocast": True}, {}),
    "fewer keys": ({"keys": 8}, {}),
}


def packaged(inputs, settings):
    sizes = {"size": 64, "width": 64, "keys": 32, "dtype": BF16, "causal": True} | inputs
    query = on_gpu(2, 4, 32, sizes["size"], dtype=sizes["dtype"])
    key, value = (on_gpu(2, 2, sizes["keys"], size, dtype=sizes["dtype"]) for size in (sizes["size"], sizes["width"]))
    module: Any = torch.nn.Sequential(torch.nn.LayerNorm(4), torch.nn.Linear(4, 4, dtype=HALF, device=DEVICE_TYPE))
    module.is_causal = sizes["causal"]
    with torch.autocast(DEVICE_TYPE, BF16, enabled="autocast" in inputs):
        return recorded(attention.of_package, module, query, key, value, None, **settings)


def test_the_packages_kernel_gets_the_kept_arguments(data_regression):
    with FakeDevice((8, 0)):
        data_regression.check({name: packaged(*case) for name, case in PACKAGED.items()})


FLASH, PACKAGE = "_scaled_dot_product_flash_attention_backward", "_flash_attention_backward"
EFFICIENT, CUDNN = (f"_scaled_dot_product_{name}_attention_backward" for name in ("efficient", "cudnn"))


def workspace(name, length, size, dtype=BF16, key_heads=4, keys=None):
    order = (0, 2, 1, 3) if name == PACKAGE else (0, 1, 2, 3)
    query, key = (
        torch.empty(2, heads, rows, size, dtype=dtype, device="meta").permute(order)
        for heads, rows in ((4, length), (key_heads, keys or length))
    )
    return attention.backward_workspace_bytes(name, query, key)


def test_workspaces_are_the_kept_ones(data_regression):
    found = {
        f"{name} {length} {size} {written(more)}".strip(): workspace(name, length, size, **more)
        for name in (FLASH, PACKAGE, EFFICIENT, CUDNN, "_softmax_backward_data")
        for length, size, more in [
            (1, 64, {}),
            (128, 64, {}),
            (129, 64, {}),
            (256, 33, {}),
            (256, 192, {}),
            (256, 193, {}),
            (256, 256, {}),
            (256, 64, {"dtype": FP32}),
            (256, 64, {"key_heads": 2}),
            (256, 64, {"key_heads": 2, "keys": 100, "dtype": FP32}),
        ]
    }
    for rows in (1, 3):
        begins = torch.empty(rows + 1, dtype=torch.int32, device="meta")
        for heads in (4, 2):
            query, key = torch.empty(300, 4, 64, dtype=BF16), torch.empty(200, heads, 64, dtype=BF16)
            size = attention.backward_workspace_bytes(PACKAGE, query, key, begins)
            found[f"{rows} rows, {heads} heads of keys"] = size
    data_regression.check(found)
