"""What `make test-kfp` is told by its environment."""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from kfp_tfjob.pipelines.kubeflow.errors import ENDPOINT, UI_ENDPOINT

BUCKET, SECRET, CHROMIUM = "TEST_KFP_BUCKET", "TEST_KFP_SECRET", "TEST_KFP_CHROMIUM"
REGISTRY, PICTURES = "TEST_KFP_REGISTRY", "TEST_KFP_OUTPUT"
_BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@dataclass(frozen=True)
class Settings:
    """Where everything is; clients read the kubeconfig and the keys of the store themselves."""

    endpoint: str  # URL of the UI or the API
    ui: str
    bucket: str  # that runs and this machine may read and write
    secret: str  # with its keys, in the namespace of the runs
    registry: str  # to which `make images PUSH=1` has pushed
    chromium: str  # empty if there is none
    pictures: str  # the folder for screenshots

    @classmethod
    def from_environment(cls) -> Self:
        endpoint = os.environ.get(ENDPOINT, "").rstrip("/")
        known = (shutil.which(name) or "" for name in _BROWSERS)
        return cls(
            endpoint=endpoint,
            ui=os.environ.get(UI_ENDPOINT, "").rstrip("/") or endpoint,
            bucket=os.environ.get(BUCKET, ""),
            secret=os.environ.get(SECRET, "objstore-cred"),
            registry=os.environ.get(REGISTRY, "").rstrip("/"),
            chromium=os.environ.get(CHROMIUM) or next(filter(None, known), ""),
            pictures=str(Path(os.environ.get(PICTURES, "test-kfp")).absolute()),
        )
