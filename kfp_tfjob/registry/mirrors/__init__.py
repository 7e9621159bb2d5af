"""Copies of the champions in other registries; one module and one process per registry."""
