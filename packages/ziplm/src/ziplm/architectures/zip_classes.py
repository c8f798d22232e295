"""The classes of shrunk models, registered with the Auto classes of transformers."""

from functools import cache
from importlib import import_module

import transformers
from transformers import AutoConfig, PreTrainedModel

from ziplm.architectures.zip_declaration import Declaration
from ziplm.architectures.zip_layers import MODULES

MODELLING_FILES = {
    "bert": "modeling_zip_bert",
    "camembert": "modeling_zip_roberta",
    "distilbert": "modeling_zip_distilbert",
    "electra": "modeling_zip_bert",
    "gpt2": "modeling_zip_gpt2",
    "llama": "modeling_zip_llama",
    "mistral": "modeling_zip_llama",
    "modernbert": "modeling_zip_modernbert",
    "mpnet": "modeling_zip_mpnet",
    "qwen2": "modeling_zip_llama",
    "qwen3": "modeling_zip_llama",
    "roberta": "modeling_zip_roberta",
    "xlm-roberta": "modeling_zip_roberta",
}
"""The file of each built-in architecture, by model type; files are copied into checkpoints."""

_OTHER_MODULES: list[str] = []  # modules of architectures that other packages have registered


@cache
def zip_classes() -> dict[str, type[PreTrainedModel]]:
    """Return all classes of shrunk models, by name."""
    modules = [f"{__package__}.{file}" for file in dict.fromkeys(MODELLING_FILES.values())]
    return {
        cls.__name__: cls for name in (*modules, *_OTHER_MODULES) for cls in import_module(name).AUTO_CLASSES
    }


def built_in_declaration(model_type: str) -> Declaration:
    """Return the declaration of a built-in architecture."""
    module = import_module(f"{__package__}.{MODELLING_FILES[model_type]}")
    found: Declaration = next(one for one in module.DECLARATIONS if one.model_type == model_type)
    return found


def register_classes(module: str) -> None:
    """Let the Auto classes find the classes of a module, and let `save_pretrained` copy their code."""
    modelling = import_module(module)
    for config in modelling.CONFIG_CLASSES.values():
        AutoConfig.register(config.model_type, config, exist_ok=True)
        config.register_for_auto_class()
    for model, auto in modelling.AUTO_CLASSES.items():
        getattr(transformers, auto).register(model.config_class, model, exist_ok=True)
        model.register_for_auto_class(auto)


def register_other_classes(declaration: Declaration) -> None:
    """Make the classes known that another package has defined with `define_classes` for its declaration."""
    module = MODULES[declaration.model_type]
    register_classes(module)
    _OTHER_MODULES.append(module)
    zip_classes.cache_clear()


for _file in dict.fromkeys(MODELLING_FILES.values()):
    register_classes(f"{__package__}.{_file}")
