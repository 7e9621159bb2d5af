"""The server that answers from the champion of a model."""
