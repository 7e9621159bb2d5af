"""The server that answers from a model's champion."""
