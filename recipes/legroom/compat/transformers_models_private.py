"""Private and undocumented names of transformers' models that this project uses or replaces, each with its reason."""

import contextlib
import copy
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from transformers import PretrainedConfig, PreTrainedModel, modeling_flash_attention_utils
from transformers.models.auto import modeling_auto

from legroom.compat.patching import patched

# flash_attn.bert_padding, as transformers has it for machines without that package
pad_input, unpad_input = modeling_flash_attention_utils._pad_input, modeling_flash_attention_utils._unpad_input


def is_encoder(config: PretrainedConfig) -> bool:
    """Whether a model of this configuration predicts masked tokens, and so sees the tokens after them.

    AutoModelForCausalLM builds some encoders without an error; no public name tells encoders and decoders apart. With
    is_decoder=True in the configuration the same class masks the tokens after each one.
    """
    masked = config.model_type in modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES
    return masked and not getattr(config, "is_decoder", False)


def is_decoder_only(config: PretrainedConfig) -> bool:
    """Whether all models of this type are causal ones."""
    masked = config.model_type in modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES
    return config.model_type in modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES and not masked


def has_attention(kind: type[PreTrainedModel], name: str) -> bool:
    """Whether a class of models has an implementation of attention: 'eager', 'sdpa', 'flex_attention', or a flash
    attention, of which a model may take some only (transformers would take another one, with a warning)."""
    if "flash" in name:
        only = getattr(kind, "_compatible_flash_implementations", None)
        return kind._supports_flash_attn and (only is None or name in only)
    return {"sdpa": kind._supports_sdpa, "flex_attention": kind._supports_flex_attn}.get(name, True)


def wanted_kernels() -> str | None:
    """The versions of the package kernels that transformers loads; None where one of them is installed. It would say
    that there is no such attention."""
    from transformers.utils import import_utils

    if import_utils.is_kernels_available():
        return None
    return f"kernels>={import_utils.KERNELS_MIN_VERSION},<{import_utils.KERNELS_MAX_VERSION}"


def load_hub_attention(name: str) -> None:
    """Download and import an implementation of attention, which a model that is built then finds loaded. Raises what
    transformers raises: ValueError for a download that fails."""
    modeling_flash_attention_utils.lazy_import_flash_attention(name)


@contextlib.contextmanager
def replaced_attention(name: str, forward: Callable[..., tuple[torch.Tensor, None]]) -> Iterator[None]:
    """Inside, models run `forward` as the implementation of attention `name`, without a mask. transformers itself would
    look for the package that has it."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    check = PreTrainedModel._check_and_adjust_attn_implementation

    def unchecked(model: PreTrainedModel, asked: str | None, *args: Any, **settings: Any) -> str:
        return name if asked == name else check(model, asked, *args, **settings)

    # What is set here stands over the library's own entries, and `del` uncovers those.
    ALL_ATTENTION_FUNCTIONS[name], ALL_MASK_ATTENTION_FUNCTIONS[name] = forward, lambda *_, **__: None
    try:
        with patched(PreTrainedModel, _check_and_adjust_attn_implementation=unchecked):
            yield
    finally:
        del ALL_ATTENTION_FUNCTIONS[name], ALL_MASK_ATTENTION_FUNCTIONS[name]


def wrap_attention(name: str, attention: Callable[..., Any], mask: Callable[..., Any]) -> None:
    """From now on models run `attention(own, ...)` for the implementation `name`, and `mask(own, ...)` for its mask.

    own: the function that they ran until now. A name of its own would hide from models and kernels which one it is.
    """
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    for known, around in ((ALL_ATTENTION_FUNCTIONS, attention), (ALL_MASK_ATTENTION_FUNCTIONS, mask)):
        own: Any = known[name]
        if getattr(own, "func", None) is not around:
            known[name] = functools.partial(around, own)


def attention_of(model: PreTrainedModel) -> str | None:
    """The implementation of attention that a built model uses: transformers chooses one where none was asked for."""
    return model.config.get_text_config()._attn_implementation


def with_plain_attention(config: PretrainedConfig) -> PretrainedConfig:
    """A copy of a configuration whose models need no package of attention: that of a built model names the one it has,
    which is looked for when another model is made of it."""
    plain = copy.deepcopy(config)
    plain._attn_implementation = "eager"
    return plain


def tied_weights(model: PreTrainedModel) -> dict[str, str]:
    """Name -> first name, of weights that are another weight under a second name. `save_pretrained` finds them by
    identity alone, which a gathered state dictionary does not have."""
    return model.all_tied_weights_keys


def not_tied(model: PreTrainedModel) -> dict[str, str]:
    """Name -> first name, of weights that are one by the configuration and two that differ by the checkpoint, which
    `from_pretrained` then leaves apart."""
    names = model.get_expanded_tied_weights_keys(all_submodels=True)
    return {name: first for name, first in names.items() if name not in model.all_tied_weights_keys}


def tensor_parallel_plan(model: PreTrainedModel) -> dict[str, str]:
    """Pattern of a module or a tensor -> style of tensor parallelism ('colwise', ...), empty without a plan."""
    return getattr(model.config, "base_model_tp_plan", None) or {}


def expanded(base: PreTrainedModel, plan: dict[str, str]) -> dict[str, str]:
    """A plan with the name of each module and tensor in the place of its pattern; tensors first, since they are split
    first."""
    return base._expand_parallel_plan(plan)


def split_tensors(base: PreTrainedModel, mesh: DeviceMesh, split: dict[str, str]) -> None:
    """Splits the tensors of a base model (name -> style) over a mesh. `from_pretrained` alone calls it."""
    from transformers.distributed.tensor_parallel import apply_tensor_parallelism

    apply_tensor_parallelism(base, mesh, split)


def expert_parallel_plan(model: PreTrainedModel) -> dict[str, str]:
    """Pattern of a module or a tensor -> style of expert parallelism, empty without a plan."""
    return getattr(model.config, "base_model_ep_plan", None) or {}


def pipeline_plan(model: PreTrainedModel) -> list[str]:
    """Modules beside the layers in the order in which they run, the layers among them; empty without a plan."""
    return list(getattr(model.config, "base_model_pp_plan", None) or ())


def split_experts(base: torch.nn.Module, experts: DeviceMesh, same_batch: DeviceMesh, split: dict[str, str]) -> None:
    """Keeps a rank's own experts of those in `split` (name -> style), and lets tokens travel to them. experts: the
    ranks that have all of them together. same_batch: the ranks with one batch. `from_pretrained` alone calls it."""
    from transformers.distributed.expert_parallel import apply_expert_parallelism

    apply_expert_parallelism(base, experts, same_batch, split)


@contextlib.contextmanager
def replaced_routes(
    routes: Callable[[torch.Tensor, int], torch.Tensor], exchange: Callable[..., None]
) -> Iterator[None]:
    """Inside, tokens travel to the experts that `routes` gives for those that the router chose, and the number of all
    experts; and `exchange(received, sent, group=)` tells the ranks how many come. How much they exchange depends on
    the values, which the fake GPU does not know."""
    from transformers.distributed import expert_parallel

    dispatch = expert_parallel.AllToAllEP._dispatch_tokens

    def dispatched(experts: Any, hidden: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> Any:
        return dispatch(experts, hidden, routes(chosen, experts.num_local_experts * experts.ep_mesh.size()), weights)

    with (
        patched(expert_parallel.AllToAllEP, _dispatch_tokens=dispatched),
        patched(expert_parallel, all_to_all_single=exchange),
    ):
        yield


def register_experts(name: str, forward: Callable[..., torch.Tensor]) -> None:
    """Makes `forward` a choice of `experts_implementation`."""
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

    ALL_EXPERTS_FUNCTIONS.register(name, forward)


def grouped_experts(
    module: Any, hidden: torch.Tensor, expert_indices: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    """transformers' own forward pass of all experts in one grouped matrix product."""
    from transformers.integrations.moe import grouped_mm_experts_forward

    return grouped_mm_experts_forward(module, hidden, expert_indices, weights)


def is_experts(module: torch.nn.Module) -> bool:
    """Whether a module has the experts of a layer in one tensor, and runs the chosen `experts_implementation`."""
    return hasattr(module, "_is_expert_parallel") and hasattr(module, "is_transposed")


def grouped_product(rows: torch.Tensor, weights: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """rows (S, K), sorted by expert, times weights (E, K, N): (S, N) in the type of the weights. offsets (E): where
    each expert's rows end. transformers knows which machines and types torch has a kernel for."""
    from transformers.integrations import moe

    return moe._grouped_mm(rows, weights, offsets)


def multiply_by_objects() -> None:
    """From now on the weights of `grouped_experts` may be objects that are no tensors: their product with rows is
    `weight.product(rows, offsets, is_transposed)`, and biases (S, N) are added to it in place, as to a tensor's."""
    from transformers.integrations import moe

    plain = moe._grouped_linear
    if getattr(plain, "takes_objects", False):
        return

    def grouped_linear(
        rows: torch.Tensor,
        weight: Any,
        offs: torch.Tensor,
        bias: torch.Tensor | None = None,
        is_transposed: bool = False,
    ) -> torch.Tensor:
        if isinstance(weight, torch.Tensor):
            return plain(rows, weight, offs, bias=bias, is_transposed=is_transposed)
        result = weight.product(rows, offs, is_transposed)
        return result if bias is None else result.add_(bias)

    grouped_linear.takes_objects = True  # type: ignore[attr-defined]
    moe._grouped_linear = grouped_linear


@contextlib.contextmanager
def loading_experts(
    quantises: Callable[[torch.nn.Module, str], bool],
    quantise: Callable[[torch.nn.Module, str, torch.Tensor], torch.Tensor],
) -> Iterator[None]:
    """Inside, `from_pretrained` with bitsandbytes quantises more than linear layers, tensor by tensor as it reads them.

    quantises(module, name): whether a weight is one of those. quantise(module, name, weight): what the parameter of
    that name becomes. transformers asks its quantizer, whose class alone can be another one, for linear layers only.
    """
    from transformers.core_model_loading import ConversionOps
    from transformers.quantizers import quantizer_bnb_4bit, quantizer_bnb_8bit
    from transformers.quantizers.quantizers_utils import get_module_from_name

    class Quantise(ConversionOps):
        """`own` for linear layers."""

        def __init__(self, own: ConversionOps):
            self.own = own

        def convert(self, input_dict: dict[str, Any], *args: Any, model: Any, **kwargs: Any) -> dict[str, Any]:
            (name, value), *more = input_dict.items()
            module, key = get_module_from_name(model, name)
            if more or not quantises(module, key):
                return self.own.convert(input_dict, *args, model=model, **kwargs)
            weight = value[0] if isinstance(value, list) else value
            return {name: quantise(module, key, weight)}

    def asks_more(kind: Any) -> dict[str, Any]:
        needs, operation = kind.param_needs_quantization, kind.get_quantize_ops

        def param_needs_quantization(self: Any, model: Any, param_name: str, **kwargs: Any) -> bool:
            module, key = get_module_from_name(model, param_name)
            return quantises(module, key) or needs(self, model, param_name, **kwargs)

        def get_quantize_ops(self: Any) -> ConversionOps:
            return Quantise(operation(self))

        return {"param_needs_quantization": param_needs_quantization, "get_quantize_ops": get_quantize_ops}

    four, eight = quantizer_bnb_4bit.Bnb4BitHfQuantizer, quantizer_bnb_8bit.Bnb8BitHfQuantizer
    with patched(four, **asks_more(four)), patched(eight, **asks_more(eight)):
        yield


def grouped_products() -> list[Any]:
    """The operations that a grouped matrix product is dispatched to: torch's, and transformers' own, for a CPU and for
    compiled code in other dtypes than bf16."""
    import transformers.integrations.moe  # noqa: F401  (registers the operation)

    return [torch.ops.aten._grouped_mm, torch.ops.transformers.grouped_mm_fallback]


def grouped_gradients() -> Any:
    """The operation that computes both gradients of transformers' own product; those of torch's are products again,
    and so are transformers' own where it has no such operation, as in 5.17."""
    import transformers.integrations.moe  # noqa: F401  (registers the operation)

    return getattr(torch.ops.transformers, "grouped_mm_fallback_backward", None)


def initialise_layers(
    model: PreTrainedModel,
    place: Callable[[torch.nn.Module], None],
    done: Callable[[str, torch.nn.Module], None],
) -> None:
    """Initialises random weights as `initialize_weights` does, module by module, children first.

    place(module): is called before a module's own weights are initialised. done(name, layer): after each layer of a
    list of layers. There is no public way to initialise a part of a model.
    """

    def visit(name: str, module: torch.nn.Module, owner: PreTrainedModel) -> None:
        for key, child in list(module.named_children()):
            full = f"{name}.{key}".lstrip(".")
            visit(full, child, child if isinstance(child, PreTrainedModel) else owner)
            if isinstance(module, torch.nn.ModuleList):
                done(full, child)
        place(module)
        owner._init_weights(module)

    visit("", model, model)


@torch.no_grad()
def initialise_head(model: PreTrainedModel) -> None:
    """Random weights outside of the base model, also where weights were loaded, which transformers protects by a mark.
    A pooler is inside: it is of no task. T5's for question answering has no base model: its parts stand at the top."""
    for name, module in model.named_modules() if hasattr(model, model.base_model_prefix) else ():
        inside = vars(module)["_is_hf_initialized"] = name.partition(".")[0] == model.base_model_prefix
        for weight in () if inside else module.parameters(recurse=False):
            vars(weight)["_is_hf_initialized"] = False
    model.initialize_weights()


def checkpoint_inside(model: Any, around: Callable[[], contextlib.AbstractContextManager]) -> None:
    """Makes every checkpoint of a model run inside `around()`, once checkpointing is switched on.

    A layer calls `_gradient_checkpointing_func(forward, *inputs)`. Its arguments can be given publicly, and a context
    for what runs inside it; what it saves are the inputs, before that context is entered.
    """

    def surrounded(checkpoint: Callable[..., Any]) -> Callable[..., Any]:
        def checkpoint_with_context(*args: Any, **kwargs: Any) -> Any:
            with around():
                return checkpoint(*args, **kwargs)

        return checkpoint_with_context

    for module in model.modules():
        if "_gradient_checkpointing_func" in vars(module):
            module._gradient_checkpointing_func = surrounded(module._gradient_checkpointing_func)
