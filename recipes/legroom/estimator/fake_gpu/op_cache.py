"""What operations return on the fake device, inferred once per kind of call.

The layers of a model repeat the same calls. The first call with certain shapes, strides and dtypes runs on torch's meta
device, which computes shapes and no values. A description of its result is cached by the call's signature, and later
calls build their result from that description.
"""

from collections.abc import Iterable
from typing import Any

import torch

from legroom.compat import torch_distributed_private, torch_private
from legroom.compat.torch_private import op_name, schema, storage_key
from legroom.errors import UnknownOperation
from legroom.estimator.fake_gpu import fake_storages

aten = torch.ops.aten
# A description of a result is a tuple that begins with one of these, or with a list or tuple type before descriptions.
NEW_TENSOR, ARGUMENT, VIEW, CONSTANT, LAID_OUT_ANEW, ON_HOST = range(6)
# Descriptions of operations without an inferred result: a number is read from the device; ranks exchange tensors.
READ, COLLECTIVE = ("read",), ("collective",)
# Losses whose mean or sum has the memory of the loss of each element: aten/src/ATen/native/Loss.cpp and cuda/Loss.cu.
UNREDUCED_MEMORY = {"mse_loss", "smooth_l1_loss", "binary_cross_entropy", "soft_margin_loss"}
CONSTANT_TYPES = (str, torch.dtype, torch.device, torch.layout, torch.memory_format)


def call_signature(func: Any, args: Any, kwargs: Any) -> tuple[tuple, list[torch.Tensor]]:
    """(a hashable key, equal for calls with alike results; the tensors among the arguments, in order)."""
    tensors: list[torch.Tensor] = []
    of_args = signature_of(args, tensors)
    of_kwargs = signature_of(kwargs.items(), tensors) if kwargs else ()
    # id(): an OpOverload lives as long as the process, and its own hash is slower.
    return (id(func), of_args, of_kwargs), tensors


def signature_of(values: Iterable[Any], tensors: list[torch.Tensor]) -> tuple:
    """All that a result can depend on, hashable. Appends every tensor among `values` to `tensors`."""
    parts = []
    for value in values:
        kind = type(value)
        if kind is int:
            parts.append(value)
        elif isinstance(value, torch.Tensor):
            tensors.append(value)
            parts.append((value.shape, value.stride(), value.dtype, value.storage_offset(), value.is_cpu))
        elif kind is list or kind is tuple:
            parts.append(signature_of(value, tensors))
        elif kind is float or kind is bool:  # 1.0 == True == 1, but their results differ
            parts.append((kind, value))
        elif isinstance(value, CONSTANT_TYPES):
            parts.append(value)
        else:
            group = torch_distributed_private.group_of(value)
            parts.append(None if group is None else group.group_name)
    return tuple(parts)


def infer_result(func: Any, args: Any, kwargs: Any, tensors: list[torch.Tensor], device_is_meta: bool) -> Any:
    """The description of a call's result. tensors: of `call_signature`.

    device_is_meta: an operation without a `device` argument makes its tensor on the meta device, too.
    Raises UnknownOperation if the meta device cannot run it.
    """
    if func is aten._local_scalar_dense.default:
        return READ
    if func.namespace == "c10d":
        return COLLECTIVE
    if func is aten.is_pinned.default:
        return CONSTANT, True  # FSDP asks this of offloaded tensors; pinned or pageable, they are on the host
    if not schema(func).returns:
        return CONSTANT, None  # it writes in place: foreach and fused optimizers, bitsandbytes' kernels
    metas = {id(tensor): meta_copy(tensor) for tensor in tensors}
    name = op_name(func)
    if name == "int8_vectorwise_quant":  # which columns stay in 16 bits depends on the values: none
        columns = _describe(torch.empty(0, dtype=torch.int64, device="meta"), {}, {})
        without_columns = _describe(func(metas[id(args[0])]), {}, {})
        return (*without_columns[:-1], columns)
    layouts = {id(meta): _layout(meta) for meta in metas.values()}
    result = _run_on_meta(func, args, kwargs, tensors, metas, device_is_meta)
    if name in UNREDUCED_MEMORY and not result.dim():
        unreduced = result.new_empty(torch.broadcast_shapes(args[0].shape, args[1].shape))
        if unreduced.numel():
            result = unreduced.as_strided((), ())
    if name == "mkldnn_rnn_layer":
        result = _with_workspace_of_mkldnn(func, args, tensors, result)
    argument_of = {}
    storage_of = {}
    for index, tensor in enumerate(tensors):
        meta = metas[id(tensor)]
        argument_of[id(meta)] = index
        storage_of[storage_key(meta.untyped_storage())] = index
    if isinstance(result, torch.Tensor) and layouts.get(id(result), _layout(result)) != _layout(result):
        return LAID_OUT_ANEW, argument_of[id(result)], *_layout(result)  # transpose_ and its like
    description = _describe(result, argument_of, storage_of)
    if name == "_scaled_dot_product_efficient_attention":
        # of its random numbers, which attention.cu makes on the host, without dropout, too
        *others, seed, offset = description
        return (*others, _on_host(seed), _on_host(offset))
    return description


def _run_on_meta(
    func: Any, args: Any, kwargs: Any, tensors: list[torch.Tensor], metas: dict[int, torch.Tensor], device_is_meta: bool
) -> Any:
    """The result of a call on torch's meta device. metas: what stands for each tensor there, by its id."""
    # The meta kernel of this product accepts bf16 only; CUDA's accepts every float dtype.
    needs_bf16 = op_name(func) == "_grouped_mm" and tensors[0].dtype != torch.bfloat16
    if needs_bf16:
        metas = dict(metas)
        for tensor in tensors:
            if tensor.is_floating_point():
                metas[id(tensor)] = metas[id(tensor)].to(torch.bfloat16)
    meta_args = [replace_tensors(value, metas) for value in args]
    meta_kwargs = {name: replace_tensors(value, metas) for name, value in kwargs.items()}
    if kwargs.get("device") is not None:
        meta_kwargs["device"] = torch.device("meta")
    if device_is_meta and "device" in [argument.name for argument in schema(func).arguments]:
        meta_kwargs["device"] = torch.device("meta")
    on_host = bool(tensors) and all(tensor.is_cpu for tensor in tensors)
    try:
        with torch_private.meta_kernels_of("cpu" if on_host else "cuda"):
            result = WITHOUT_META.get(func, func)(*meta_args, **meta_kwargs)
    except RuntimeError as error:  # NotImplementedError, of an operation without a meta kernel, is one, too
        raise UnknownOperation(f"the fake device cannot infer {func}: {str(error).splitlines()[0]}") from error
    if needs_bf16:
        result = result.to(tensors[0].dtype)
    return result


def _with_workspace_of_mkldnn(func: Any, args: Any, tensors: list[torch.Tensor], result: Any) -> tuple:
    """oneDNN alone knows how large its workspace is, the last of the results: it is run with zeros."""
    zeros = {id(tensor): torch.zeros(tensor.shape, dtype=tensor.dtype, device="cpu") for tensor in tensors}
    real = func(*[replace_tensors(value, zeros) for value in args])
    *others, workspace = result
    return (*others, workspace.new_empty(real[-1].shape))


def _on_host(description: tuple) -> tuple:
    """The description of a new tensor, as one on the host."""
    _, size, _, dtype, _ = description
    return ON_HOST, size, dtype


def _layout(tensor: torch.Tensor) -> tuple:
    return tensor.shape, tensor.stride(), tensor.storage_offset()


def _gru_cell(input_gates: torch.Tensor, hidden_gates: torch.Tensor, hx: torch.Tensor, *_: Any) -> tuple:
    """aten/src/ATen/native/cuda/RNN.cu: the new state, and the gates that the backward pass needs."""
    return torch.empty_like(hx, memory_format=torch.contiguous_format), hx.new_empty(hx.shape[0], hx.shape[1] * 5)


def _gru_cell_backward(grad: torch.Tensor, workspace: torch.Tensor, has_bias: bool) -> tuple:
    """The gradients of both kinds of gates, of the state, and of both biases."""
    gates = workspace.shape[1] // 5 * 3
    input_gates = workspace.new_empty(workspace.shape[0], gates)
    hidden_gates = workspace.new_empty(workspace.shape[0], gates)
    state = torch.empty_like(grad, memory_format=torch.contiguous_format)
    input_bias = None
    hidden_bias = None
    if has_bias:
        input_bias = workspace.new_empty(gates)
        hidden_bias = workspace.new_empty(gates)
    return input_gates, hidden_gates, state, input_bias, hidden_bias


# Operations of CUDA that torch gives no meta kernel: what takes their place.
WITHOUT_META = {
    aten._thnn_fused_gru_cell.default: _gru_cell,
    aten._thnn_fused_gru_cell_backward.default: _gru_cell_backward,
    aten._ctc_loss_backward.default: lambda _, scores, *__: torch.empty_like(scores),
    aten._sample_dirichlet.default: lambda parameters, *_: torch.empty_like(parameters),
    aten._dirichlet_grad.default: lambda sample, *_: torch.empty_like(sample),
    aten.mish_backward.default: lambda _, tensor: torch.empty_like(tensor),
    aten.native_channel_shuffle.default: lambda tensor, _: torch.empty_like(tensor),
}


def meta_copy(tensor: torch.Tensor) -> torch.Tensor:
    """A meta tensor with the same shape, strides, dtype and storage size."""
    if tensor.is_meta:
        return tensor
    needed = tensor.storage_offset() + 1
    for size, stride in zip(tensor.shape, tensor.stride()):
        needed += (size - 1) * stride
    held = fake_storages.real_nbytes(tensor.untyped_storage()) // tensor.element_size()
    whole = torch.empty(max(held, needed), dtype=tensor.dtype, device="meta")
    return whole.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def replace_tensors(value: Any, replacements: dict[int, Any]) -> Any:
    """A value, or list or tuple of values, with each tensor replaced. replacements: by the id() of a tensor."""
    if isinstance(value, torch.Tensor):
        return replacements[id(value)]
    if isinstance(value, (list, tuple)):
        return type(value)([replace_tensors(item, replacements) for item in value])
    return value


def _describe(result: Any, argument_of: dict[int, int], storage_of: dict[int, int]) -> tuple:
    """argument_of, storage_of: the index of the argument that is, or has the storage of, a meta tensor."""
    if isinstance(result, (list, tuple)):
        kind = tuple if isinstance(result, tuple) else list
        return kind, *[_describe(item, argument_of, storage_of) for item in result]
    if not isinstance(result, torch.Tensor):
        return CONSTANT, result
    if id(result) in argument_of:
        return ARGUMENT, argument_of[id(result)]
    argument = storage_of.get(storage_key(result.untyped_storage()))
    if argument is not None:
        return VIEW, argument, result.shape, result.stride(), result.storage_offset(), result.dtype
    return NEW_TENSOR, result.shape, result.stride(), result.dtype, result.untyped_storage().nbytes()


def build_result(description: tuple, tensors: list[torch.Tensor], device: torch.device) -> Any:
    """The result of a call from its description. tensors: among its arguments. device: of new tensors."""
    kind, *values = description
    if kind is NEW_TENSOR:
        size, stride, dtype, size_bytes = values
        return fake_storages.empty(size, stride, dtype, size_bytes, device)
    if kind is ARGUMENT:
        return tensors[values[0]]
    if kind is VIEW:
        return fake_storages.view(tensors[values[0]], *values[1:])
    if kind is LAID_OUT_ANEW:
        return fake_storages.lay_out(tensors[values[0]], *values[1:])
    if kind is CONSTANT:
        return values[0]
    if kind is ON_HOST:
        size, dtype = values
        return torch.zeros(size, dtype=dtype, device="cpu")
    return kind(build_result(part, tensors, device) for part in values)
