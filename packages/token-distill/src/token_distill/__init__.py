"""Distillation losses on plain tensors: logits, spans and layer-wise tokens."""
