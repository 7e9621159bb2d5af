"""Compares a run with the nodes and Secrets of the cluster of this machine's kubeconfig."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kfp_tfjob.checks.shortage import SecretUse, secret_fix, secrets_of
from kfp_tfjob.cluster.manifests import MULTI_USER, STANDALONE
from kfp_tfjob.jobs.spec import JobSpec
from kfp_tfjob.options.pipeline import PARAMETERS
from kfp_tfjob.pipelines.kubeflow.inputs import first
from kfp_tfjob.pipelines.kubeflow.pods import INSTALLATION
from kfp_tfjob.storage.errors import StepError

if TYPE_CHECKING:
    from kfp_tfjob.cluster.client import ClusterClient

log = logging.getLogger(__name__)

_SECONDS = 2.0  # of retries; an optional check must not hold up a person
FIX = "ask for less, for instance --set pod.all.cpu=1 --set pod.all.memory=4Gi, or add nodes"


@dataclass(frozen=True)
class Compared:
    """What the cluster lacks for a run.

    Attributes:
        waits: Why pods would wait for nodes.
        missing: Which Secrets do not exist, or lack a key.
        warnings: What else may be wrong.
        notes: What could not be found out.
    """

    waits: Sequence[str] = ()
    missing: Sequence[str] = ()
    warnings: Sequence[str] = ()
    notes: Sequence[str] = ()


def compare(spec: JobSpec, namespace: str = "") -> Compared:
    """Return what the cluster lacks, and what could not be found out.

    Args:
        spec: The training job.
        namespace: Where the runs are; empty for the kubeconfig's, else that of the installation.
    """
    from kfp_tfjob.checks.job import shared_gpus, too_small
    from kfp_tfjob.cluster.client import PATIENCE, ClusterClient
    from kfp_tfjob.cluster.errors import ForbiddenError
    from kfp_tfjob.components.step_pods import asked_for, step_pods, too_large
    from kfp_tfjob.pipelines.step_resources import DEFAULTS

    unknown = "whether the pods fit on the nodes was not checked"
    logging.getLogger("kfp_tfjob.storage.retry").setLevel(logging.ERROR)
    try:
        patience = replace(PATIENCE, seconds=_SECONDS, first=0.2)
        api = ClusterClient.from_environment(patience, spec.kind)
    except StepError:
        return Compared(notes=[f"{unknown}: this machine has no kubeconfig"])
    api.namespace = namespace or (api.namespace if api.namespace != "default" else INSTALLATION)
    try:
        missing, warnings = _secrets(api, secrets_of(spec))
        found = api.list("/api/v1/nodes")
    except ForbiddenError:
        return Compared((), missing, warnings, [f"{unknown}: you may not list nodes"])
    except StepError as error:
        return Compared(notes=[f"{unknown}: {first(error)}"])
    where = f" (cluster {api.address})"
    waits = [f"{text}{where}. Fix: {FIX}" for text in too_small(spec, found)]
    for it in asked_for(step_pods(spec.pod, DEFAULTS)):
        fix = f"lower {it.key}, or add nodes"
        waits += [f"{text}{where}. Fix: {fix}" for text in too_large(it, found)]
    warnings += [f"{it.what}{where}. Fix: {it.fix}" for it in shared_gpus(spec, found)]
    return Compared(waits, missing, warnings)


def _secrets(api: ClusterClient, uses: Sequence[SecretUse]) -> tuple[list[str], list[str]]:
    """Return which Secrets of a run are missing, and what else to warn of."""
    from kfp_tfjob.cluster.errors import ForbiddenError

    missing: list[str] = []
    warnings: list[str] = []
    try:
        if not any(api.get(api.core("serviceaccounts", it)) for it in (STANDALONE, MULTI_USER)):
            return [], []  # no run can be here
        for name in dict.fromkeys(it.name for it in uses):
            found = api.get(api.core("secrets", name))
            lacking = [it for it in uses if it.name == name]
            what = f"Secret {name} does not exist in namespace {api.namespace}"
            if found is not None:  # that of the store may have keys of other names
                has = {"", *(found.get("data") or {})}
                lacking = [it for it in lacking if it.key not in has]
                lacking = [it for it in lacking if it.parameter != "storage_secret"]
                what = f"Secret {name} has no key {' and no key '.join(it.key for it in lacking)}"
            if not lacking:
                continue
            fix = secret_fix(lacking, found is not None, api.namespace)
            where, mine = f" (cluster {api.address})", {it.parameter for it in lacking}
            if name == PARAMETERS["storage_secret"].default and mine == {"storage_secret"}:
                warnings.append(f"{what}: pods use the keys of their node or account. Fix: {fix}")
            else:
                missing.append(f"{what}{where}. Fix: {fix}")
    except ForbiddenError:
        log.debug("this account may not read Secrets; preflight looks for them")
    return missing, warnings
