"""What a step takes from `pod.prepare` or `pod.evaluate` for its own work."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from kfp_tfjob.cluster.backend import is_local
from kfp_tfjob.options.parse import parse
from kfp_tfjob.options.pod import PodOptions


def gpus_of(pod: Mapping[str, Any]) -> int:
    """Return the GPUs of the pod of evaluate or publish; none in a local run."""
    return 0 if is_local() else parse(PodOptions, "pod", pod).evaluate.gpus


def cores_of(pod: Mapping[str, Any]) -> int:
    """Return the cores that `pod.prepare` requests; 0 if it does not say."""
    from kubernetes.utils.quantity import parse_quantity

    asked = parse(PodOptions, "pod", pod).prepare.cpu
    return math.ceil(parse_quantity(asked)) if asked else 0
