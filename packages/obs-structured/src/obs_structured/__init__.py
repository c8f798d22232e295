"""Structured Optimal Brain Surgeon pruning on plain weight and Hessian tensors."""
