"""Model families. A new one is a file with an `Adapter`, and a line here."""

from transformers import PreTrainedModel

from ziplm.adapters.base import Adapter, Module, StreamPoint
from ziplm.adapters.bert import BertAdapter
from ziplm.adapters.gpt2 import GPT2Adapter
from ziplm.adapters.pieces import KINDS, Kind
from ziplm.errors import UnsupportedModel

__all__ = ["KINDS", "Adapter", "Kind", "Module", "StreamPoint", "adapter_for", "register"]

_ADAPTERS: dict[str, Adapter] = {}


def register(adapter: Adapter) -> None:
    """Make a family known by its model types."""
    _ADAPTERS.update(dict.fromkeys(adapter.model_types, adapter))


def adapter_for(model: PreTrainedModel) -> Adapter:
    """The adapter for a model; raises UnsupportedModel if there is none, or if it cannot be shrunk."""
    model_type = model.config.model_type
    if model_type not in _ADAPTERS:
        known = ", ".join(name for name in _ADAPTERS if not name.startswith("zip_"))
        raise UnsupportedModel(f"models of type {model_type!r} are not known", f"ziplm shrinks: {known}")
    adapter = _ADAPTERS[model_type]
    adapter.check(model)
    return adapter


for _adapter in (BertAdapter(), GPT2Adapter()):
    register(_adapter)
