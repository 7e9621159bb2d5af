"""Encodes columns and images for a model: in training, in the exported model, in requests."""
