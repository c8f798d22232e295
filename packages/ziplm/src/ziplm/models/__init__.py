"""Shrunk models as classes of transformers, registered with its Auto classes."""

from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForMultipleChoice,
    AutoModelForNextSentencePrediction,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PreTrainedModel,
)

from ziplm.models import modeling_zip_bert as bert
from ziplm.models import modeling_zip_gpt2 as gpt2

AUTO_CLASSES = {
    bert.ZipBertModel: AutoModel,
    bert.ZipBertForMaskedLM: AutoModelForMaskedLM,
    bert.ZipBertForMultipleChoice: AutoModelForMultipleChoice,
    bert.ZipBertForNextSentencePrediction: AutoModelForNextSentencePrediction,
    bert.ZipBertForQuestionAnswering: AutoModelForQuestionAnswering,
    bert.ZipBertForSequenceClassification: AutoModelForSequenceClassification,
    bert.ZipBertForTokenClassification: AutoModelForTokenClassification,
    gpt2.ZipGPT2Model: AutoModel,
    gpt2.ZipGPT2LMHeadModel: AutoModelForCausalLM,
    gpt2.ZipGPT2ForQuestionAnswering: AutoModelForQuestionAnswering,
    gpt2.ZipGPT2ForSequenceClassification: AutoModelForSequenceClassification,
    gpt2.ZipGPT2ForTokenClassification: AutoModelForTokenClassification,
}


def zip_class(name: str) -> type[PreTrainedModel] | None:
    """The class of shrunk models of that name, if there is one."""
    return next((cls for cls in AUTO_CLASSES if cls.__name__ == name), None)


def _register() -> None:
    """Make the Auto classes know ours, and `save_pretrained` copy our code into checkpoints."""
    for config in (bert.ZipBertConfig, gpt2.ZipGPT2Config):
        AutoConfig.register(config.model_type, config)
        config.register_for_auto_class()
    for model, auto in AUTO_CLASSES.items():
        auto.register(model.config_class, model)
        model.register_for_auto_class(auto.__name__)


_register()
