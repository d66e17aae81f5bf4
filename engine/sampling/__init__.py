"""Denoise loops as pure functions of tensors and a model callable."""
