"""Compares a training job with the nodes of the cluster of this machine's kubeconfig."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from kfp_tfjob.components.launch_tfjob.spec import JobSpec
from kfp_tfjob.pipelines.kubeflow.inputs import first
from kfp_tfjob.storage.errors import ConfigurationError, StepError

_SECONDS = 2.0  # of retries; an optional check must not hold up a person
FIX = "ask for less, for instance --set pod.all.cpu=1 --set pod.all.memory=4Gi, or add nodes"


def compare(spec: JobSpec, workers: int = 0) -> tuple[Sequence[str], Sequence[str]]:
    """Return why the pods would wait for nodes, and what could not be found out.

    Args:
        spec: The training job.
        workers: As in `data_options`.
    """
    from kfp_tfjob.cluster.client import PATIENCE, ClusterClient
    from kfp_tfjob.cluster.errors import ForbiddenError
    from kfp_tfjob.components.launch_tfjob.checks import shared_gpus, too_small
    from kfp_tfjob.components.preflight.step_jobs import asked_for, too_large

    unknown = "whether the pods fit on the nodes was not checked"
    logging.getLogger("kfp_tfjob.storage.retry").setLevel(logging.ERROR)
    try:
        patience = replace(PATIENCE, seconds=_SECONDS, first=0.2)
        api = ClusterClient.from_environment(patience, spec.kind)
        found = api.list("/api/v1/nodes")
    except ForbiddenError:
        return (), [f"{unknown}: you may not list nodes"]
    except ConfigurationError:
        return (), [f"{unknown}: this machine has no kubeconfig"]
    except StepError as error:
        return (), [f"{unknown}: {first(error)}"]
    where = f" (cluster {api.address})"
    warnings = [f"{text}{where}. Fix: {FIX}" for text in too_small(spec, found)]
    for job in asked_for(spec.pod, workers=workers):
        fix = f"lower pod.{job.name}, or add nodes"
        texts = too_large(job, job.manifest("run", 1, {}), found)
        warnings += [f"{text}{where}. Fix: {fix}" for text in texts]
    warnings += [f"{it.what}{where}. Fix: {it.fix}" for it in shared_gpus(spec, found)]
    return warnings, ()
