"""Encodes columns and pictures for a model: in training, in the exported model, in requests."""
