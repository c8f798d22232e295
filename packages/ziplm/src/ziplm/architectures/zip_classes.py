"""The classes of shrunk models, registered with the Auto classes of transformers."""

from functools import cache
from importlib import import_module

import transformers
from transformers import AutoConfig, PreTrainedModel

MODELLING_FILES = ("modeling_zip_bert", "modeling_zip_gpt2")
"""Files that are copied into checkpoints; each defines CONFIG_CLASS and AUTO_CLASSES."""


@cache
def zip_classes() -> dict[str, type[PreTrainedModel]]:
    """Return all classes of shrunk models, by name."""
    return {name: cls for file in MODELLING_FILES for name, cls in zip_classes_in(file).items()}


def zip_classes_in(file: str) -> dict[str, type[PreTrainedModel]]:
    """Return the classes of shrunk models that one modelling file defines, by name."""
    return {cls.__name__: cls for cls in import_module(f"{__package__}.{file}").AUTO_CLASSES}


def register_zip_classes() -> None:
    """Let the Auto classes find ours, and let `save_pretrained` copy their code into checkpoints."""
    for file in MODELLING_FILES:
        modelling = import_module(f"{__package__}.{file}")
        config = modelling.CONFIG_CLASS
        AutoConfig.register(config.model_type, config)
        config.register_for_auto_class()
        for model, auto in modelling.AUTO_CLASSES.items():
            getattr(transformers, auto).register(config, model)
            model.register_for_auto_class(auto)


register_zip_classes()
