"""The chosen implementation of attention in a model."""

from transformers import PretrainedConfig

from legroom.compat import transformers_models_private
from legroom.errors import Refusal
from legroom.levers.attention import rules
from legroom.models import architectures
from legroom.models.builder import Construction
from legroom.options.hooks import Behaviour
from legroom.records.printable import printable


class Apply(Behaviour):
    def check_model(self, name: str, architecture: PretrainedConfig, task: str) -> None:
        asked, kind = self.cfg.model.attention, architectures.model_class(architecture, task)
        if kind is not None and not transformers_models_private.has_attention(kind, asked):
            raise Refusal(
                f"model.attention={asked} is not supported by {kind.__name__}. Type model.attention=auto, which takes "
                "the best that the model has."
            )
        if rules.lacks_dropout(asked) and _attention_dropout(architecture):
            raise Refusal(f"model.attention={asked} has no dropout, which {name} has. Type model.attention=sdpa.")
        if rules.is_of_hub(asked) and not self.cfg.predicts:
            _load_from_hub(asked)

    def configure_model(self, construction: Construction) -> None:
        construction.settings["attn_implementation"] = self.cfg.model.attention


def _load_from_hub(name: str) -> None:
    """Download an implementation of attention, or raise Refusal; building the model would end in a traceback."""
    wanted = transformers_models_private.wanted_kernels()
    if wanted is not None:
        raise Refusal(
            f"model.attention={name} needs {wanted} with this transformers: pip install '{wanted}', or choose "
            "model.attention=sdpa."
        )
    try:
        transformers_models_private.load_hub_attention(name)
    except (ImportError, OSError, RuntimeError, ValueError) as error:
        first = (str(error) or type(error).__name__).strip().splitlines()[0].rstrip(".")
        raise Refusal(
            f"model.attention={name} cannot be loaded: {printable(first)}. Choose model.attention=sdpa."
        ) from error


def _attention_dropout(config: PretrainedConfig) -> float:
    """The dropout of attention in the configurations of transformers, by any of its names."""
    text, names = config.get_text_config(), ("attention_dropout", "attention_probs_dropout_prob", "attn_pdrop")
    return max((getattr(text, name, None) or 0.0 for name in names), default=0.0)
