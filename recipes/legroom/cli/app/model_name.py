"""From what a person writes for a model (an option, a hub id, a link, a name) to the overrides that it stands for."""

from legroom.errors import Refusal
from legroom.options import model_names


class Unclear(Refusal):
    """A name that is none of the known models', or that of several. near: the options to choose from."""

    def __init__(self, message: str, near: list[str]):
        super().__init__(message)
        self.near = near


def overrides(text: str) -> list[str]:
    """The overrides of a model. Raises Unclear, in one sentence, for what is not known or not clear.

    A hub id stays one, so that the command to train has it; the estimate then takes the sizes of the known model, or of
    a config.json in this machine's cache.
    """
    name = text.strip()
    option = model_names.option(name)
    hub_id = model_names.hub_id(name)
    if hub_id is not None and (option is not None or _is_cached(hub_id)):
        return [f"model.pretrained={hub_id}"]
    if option is not None and "/" not in name:
        return [f"model={option}"]
    near = model_names.near(name)
    if "/" in name:
        raise Unclear(
            f"{name[:100]} is not among the known models, and its config.json is not in this machine's cache: paste "
            f"that config.json, or choose a model of like sizes ({', '.join(near)}).",
            near,
        )
    offered = f"near are {', '.join(near)}" if near else "the list has their names"
    raise Unclear(
        f"{name[:100] or 'Nothing'} is not clear, or no known model: {offered}, or paste its config.json.", near
    )


def _is_cached(hub_id: str) -> bool:
    import huggingface_hub

    return isinstance(huggingface_hub.try_to_load_from_cache(hub_id, "config.json"), str)
