"""Finds unknown fields and wrong types in a TFJob.

The API server drops unknown fields without an error. The levels of the TFJob itself are listed
here. From the pod template down, the fields come from the Kubernetes client.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from kfp_tfjob.jobs.tfjob import TFJOB
from kfp_tfjob.lint.document import Path
from kfp_tfjob.storage.formatting import nearest

JOB = TFJOB.name
FIELDS: dict[str, dict[str, str]] = {
    JOB: {
        "apiVersion": "str",
        "kind": "str",
        "metadata": "V1ObjectMeta",
        "spec": f"{JOB}Spec",
        "status": "object",
    },
    f"{JOB}Spec": {
        "enableDynamicWorker": "bool",
        "runPolicy": "RunPolicy",
        "successPolicy": "str",
        TFJOB.replicas_key: "dict(str, ReplicaSpec)",
    },
    "RunPolicy": {
        "activeDeadlineSeconds": "int",
        "backoffLimit": "int",
        "cleanPodPolicy": "str",
        "managedBy": "str",
        "schedulingPolicy": "SchedulingPolicy",
        "suspend": "bool",
        "ttlSecondsAfterFinished": "int",
    },
    "SchedulingPolicy": {
        "minAvailable": "int",
        "minResources": "dict(str, quantity)",
        "priorityClass": "str",
        "queue": "str",
        "scheduleTimeoutSeconds": "int",
    },
    "ReplicaSpec": {"replicas": "int", "restartPolicy": "str", "template": "V1PodTemplateSpec"},
}
_QUANTITIES = {
    ("V1ResourceRequirements", "limits"): "dict(str, quantity)",
    ("V1ResourceRequirements", "requests"): "dict(str, quantity)",
    ("V1VolumeResourceRequirements", "limits"): "dict(str, quantity)",
    ("V1VolumeResourceRequirements", "requests"): "dict(str, quantity)",
    ("V1EmptyDirVolumeSource", "sizeLimit"): "quantity",
    ("V1ResourceFieldSelector", "divisor"): "quantity",
}
_SCALARS: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "float": (int, float),
    "bool": (bool,),
    "datetime": (str,),
    "quantity": (str, int, float),
}
_WORDS = {
    "str": "a text",
    "int": "a whole number",
    "bool": "true or false",
    "float": "a number",
    "datetime": "a text",
    "quantity": "a string or a number",
}


@dataclass(frozen=True)
class Violation:
    """A field that is unknown or has the wrong type.

    Attributes:
        path: The path of the field.
        model: The kind of object that has the field.
        expected: The expected type; empty if the field is unknown.
        value: The value of the field.
        meant: For an unknown field, the field that was probably meant, or empty.
    """

    path: Path
    model: str
    expected: str
    value: Any
    meant: str = ""

    @property
    def structural(self) -> bool:
        """Whether an object or a list is expected: then nothing below can be read."""
        return bool(self.expected) and self.expected not in _SCALARS

    @property
    def words(self) -> str:
        """The expected type as text."""
        if self.structural:
            return "a list" if self.expected.startswith("list") else "an object"
        return _WORDS[self.expected]


def violations(
    value: Any, kind: str = JOB, path: Path = (), model: str = ""
) -> Iterator[Violation]:
    """Yield every field of `value` that is unknown or of the wrong type.

    Args:
        value: The value; null counts as absent.
        kind: The type, as the Kubernetes client writes types.
        path: The path of the value.
        model: The kind of object that has the field.
    """
    if value is None or kind == "object":
        return
    if kind in _SCALARS:
        fits = isinstance(value, _SCALARS[kind])
        if not fits or (isinstance(value, bool) and kind != "bool"):
            yield Violation(path, model, kind, value)
    elif inner := re.fullmatch(r"list\[(.+)\]", kind):
        if not isinstance(value, list):
            yield Violation(path, model, kind, value)
            return
        for index, item in enumerate(value):
            if item is None:
                yield Violation((*path, index), model, inner[1], item)
            yield from violations(item, inner[1], (*path, index), model)
    elif not isinstance(value, dict):
        yield Violation(path, model, kind, value)
    elif inner := re.fullmatch(r"dict\(str, (.+)\)", kind):
        for key, item in value.items():
            if item is None and inner[1] not in _SCALARS:
                yield Violation((*path, key), model, inner[1], item)
            yield from violations(item, inner[1], (*path, key), model)
    else:
        known = fields(kind)
        for key, item in value.items():
            if key in known:
                yield from violations(item, known[key], (*path, key), kind)
            else:
                yield Violation((*path, key), kind, "", item, nearest(key, known, alike=0.8))


@cache
def fields(kind: str) -> Mapping[str, str]:
    """Return the types of the fields of a kind of object, by name."""
    if kind in FIELDS:
        return FIELDS[kind]
    from kubernetes.client import models

    model = getattr(models, kind)
    return {
        name: _QUANTITIES.get((kind, name)) or model.openapi_types[attribute]
        for attribute, name in model.attribute_map.items()
    }
