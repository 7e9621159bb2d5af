"""Copies of the champions in other registries; one module and one process per registry."""

METRIC = "metric."  # precedes a metric's name in its fact's name
