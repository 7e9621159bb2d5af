"""Copies of the champions in the registries of others; one module each, one process each."""
