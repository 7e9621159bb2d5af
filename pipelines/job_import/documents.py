"""Reads the objects of a YAML or JSON file, and finds the training jobs among them.

Files from clusters contain more than jobs: lists, Services, or kinds that import cannot read. Each
of these gets its own message. Called by `import_job.py` and `conversion.py`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from kfp_tfjob.common.errors import ConfigurationError, Problem
from kfp_tfjob.jobs.objects import Object

STDIN = Path("-")
_LONGEST = 16 << 20  # bytes; etcd keeps no object of more than about 1.5 MB
_JOBS = {
    "TFJob": ("kubeflow.org", ("v1", "v1beta2", "v1beta1", "v1alpha2")),
    "PyTorchJob": ("kubeflow.org", ("v1", "v1beta2", "v1beta1")),
    "JobSet": ("jobset.x-k8s.io", ("v1alpha2",)),
}
_EXPECTED = "a TFJob, a PyTorchJob or a JobSet"
# Other kinds of training jobs, with the remedy for each.
_REFUSED = {
    "TrainJob": "import the JobSet that it created: kubectl get jobset NAME -o yaml | kfp-tfjob"
    " import -",
    "Job": "wrap it in a JobSet with one replicatedJob, and import that",
}
_OTHER_JOB = "describe its program with train_options.command and train_workers, without import"


@dataclass(frozen=True)
class Documents:
    """The objects of a file.

    Attributes:
        source: The file's name, for messages.
        jobs: The jobs that import reads, as they are in the file.
        other_objects: Kind and name of every other object, for example `Service/train`.
    """

    source: str
    jobs: tuple[Object, ...]
    other_objects: tuple[str, ...]


def read(file: Path) -> Documents:
    """Return the objects of a file; `-` is standard input.

    Raises:
        ConfigurationError: The file is not YAML, lacks a job, or contains a job that import cannot
            read.
    """
    source = "standard input" if file == STDIN else str(file)
    objects = list(_objects(_load(_text(file, source), source)))
    jobs = [manifest for manifest in objects if _is_job(manifest)]
    problems = (_unreadable(manifest, source) for manifest in objects)
    ConfigurationError.raise_if(filter(None, problems))
    other_objects = [
        f"{_kind(manifest)}/{name_of(manifest)}" for manifest in objects if not _is_job(manifest)
    ]
    if not jobs:
        raise ConfigurationError(
            Problem(
                f"{source} has no training job",
                received=", ".join(other_objects) or "no object",
                expected=_EXPECTED,
                fix="name the file of the job, or pipe it in: kubectl get tfjob NAME -o yaml |"
                " kfp-tfjob import -",
            )
        )
    return Documents(source, tuple(jobs), tuple(other_objects))


def name_of(manifest: Object) -> str:
    """Return an object's name; empty if it is missing, as with generateName."""
    metadata = manifest.get("metadata")
    name = metadata.get("name") if isinstance(metadata, Mapping) else ""
    return str(name or "")


def _text(file: Path, source: str) -> str:
    try:
        data = sys.stdin.buffer.read(_LONGEST + 1) if file == STDIN else file.read_bytes()
        text = data.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            Problem(
                f"{source} cannot be read",
                received=str(error),
                expected="a text file with YAML or JSON in UTF-8",
                fix="name the job's file",
            )
        ) from None
    if len(data) > _LONGEST:
        raise ConfigurationError(
            Problem(
                f"{source} is too large",
                received=f"{len(data):,} bytes",
                expected=f"at most {_LONGEST:,} bytes",
                fix="name a file that contains only the job",
            )
        )
    return text


def _load(text: str, source: str) -> list[Any]:
    import yaml

    loader = _loader()
    try:
        documents = list(yaml.load_all(text, loader))
        json.dumps(documents, default=str)  # a YAML alias may contain itself
        return documents
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        raise ConfigurationError(
            Problem(
                f"{source} is not YAML",
                received=" ".join(str(error).split()),
                expected=f"the manifest of {_EXPECTED}",
                fix="correct this line",
            )
        ) from None


@cache
def _loader() -> Any:
    """Return a YAML loader that reads dates and numbers like 1:30 as strings, as Kubernetes does.

    YAML 1.1 reads 1:30 as 90, a number to the base 60.
    """
    import yaml

    class Loader(yaml.SafeLoader):
        def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
            tag = super().resolve(kind, value, implicit)
            is_number = tag.endswith((":int", ":float"))
            is_string = tag.endswith(":timestamp") or (is_number and ":" in value)
            return self.DEFAULT_SCALAR_TAG if is_string else tag

    return Loader


def _objects(documents: list[Any]) -> Iterator[Object]:
    """Yield the objects of all documents; the objects of a list, which `kubectl get` prints, too.

    A document that is not an object becomes one with its Python type as the kind, for the message.
    """
    for document in documents:
        if not isinstance(document, dict):
            if document is not None:
                yield {"kind": type(document).__name__}
        elif str(document.get("kind", "")).endswith("List") and "items" in document:
            items = document["items"]
            yield from _objects(items if isinstance(items, list) else [])
        else:
            yield document


def _kind(manifest: Object) -> str:
    return str(manifest.get("kind") or "object without a kind")


def _is_job(manifest: Object) -> bool:
    group, _, version = str(manifest.get("apiVersion", "")).rpartition("/")
    expected, versions = _JOBS.get(_kind(manifest), ("", ()))
    return group == expected and version in versions


def _unreadable(manifest: Object, source: str) -> Problem | None:
    """Return the problem of a training job that import cannot read; None for other objects."""
    kind, version = _kind(manifest), str(manifest.get("apiVersion", ""))
    is_training = kind.lower().endswith("job") and kind != "CronJob"
    if _is_job(manifest) or not (is_training or kind == "JobSet"):
        return None
    supported_kind = next((name for name in _JOBS if name.lower() == kind.lower()), "")
    if supported_kind:
        group, versions = _JOBS[supported_kind]
        expected = f"{supported_kind} of {group} in the version {', '.join(versions)}"
        fix = "write the job again in the form of the newest version"
    else:
        expected, fix = _EXPECTED, _REFUSED.get(kind, _OTHER_JOB)
    return Problem(
        f"import cannot read the {kind} {name_of(manifest)} in {source}",
        received=f"{kind} of {version or 'no apiVersion'}",
        expected=expected,
        fix=fix,
        path="apiVersion" if supported_kind else "kind",
    )
