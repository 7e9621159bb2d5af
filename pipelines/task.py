"""The former name of `step_pod.py`, under which users' pipelines import `with_store`."""

from .step_pod import sized, with_store

__all__ = ["sized", "with_store"]
