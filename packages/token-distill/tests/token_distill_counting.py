"""A model that counts its calls, for tests of the teacher."""

import torch
from torch import nn


class Counting(nn.Module):
    """Model with logits per token, per span or per example, which counts its calls."""

    def __init__(self, kind="classes"):
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.head = nn.Embedding(50, 8), nn.Linear(8, 3)
        self.dropout = nn.Dropout(0.5)
        self.kind, self.calls = kind, 0

    def forward(self, ids, mask=None, shift=None):
        self.calls += 1
        self.built_a_graph = torch.is_grad_enabled()
        states = self.dropout(self.embedding(ids))  # (batch, tokens, 8)
        if shift is not None:
            assert shift.dtype == states.dtype
            states = states + shift
        logits = self.head(states)
        weights = torch.ones_like(ids) if mask is None else mask
        pooled = (logits * weights[..., None]).sum(1) / weights.sum(1, keepdim=True)
        output = {
            "tokens": {"logits": logits},
            "span": {"start_logits": logits[..., 0], "end_logits": logits[..., 1]},
            "classes": {"logits": pooled},
        }
        return output[self.kind] | {"hidden_states": (states, states)}


IDS = torch.tensor([[1, 2, 3], [4, 5, 6], [7, 8, 9]])
