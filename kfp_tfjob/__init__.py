"""Train Keras and TensorFlow models on many pods, from Kubeflow Pipelines.

In a checkout, `components`, `pipelines`, `trainer` and `uploader` are links to the folders of the
root, so that every module has one name, which starts with `kfp_tfjob`.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kfp_tfjob.pipelines.kubeflow.client import Client

__all__ = ["Client"]


def __getattr__(name: str) -> object:
    """Return `Client`, which loads only when it is asked for."""
    if name == "Client":
        from kfp_tfjob.pipelines.kubeflow.client import Client

        return Client
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
