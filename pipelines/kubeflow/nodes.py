"""Compares a run with the nodes and Secrets of the cluster of this machine's kubeconfig."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kfp_tfjob.cluster.manifests import MULTI_USER, STANDALONE
from kfp_tfjob.components.launch_tfjob.shortage import STORE_KEYS, create_secret
from kfp_tfjob.components.launch_tfjob.spec import JobSpec
from kfp_tfjob.options.pipeline import PARAMETERS
from kfp_tfjob.options.pod import SecretKey
from kfp_tfjob.pipelines.kubeflow.inputs import first
from kfp_tfjob.pipelines.kubeflow.pods import INSTALLATION
from kfp_tfjob.storage.errors import Problem, StepError

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
        warnings: What else may be wrong.
        problems: What would fail the run.
        notes: What could not be found out.
    """

    waits: Sequence[str] = ()
    warnings: Sequence[str] = ()
    problems: Sequence[Problem] = ()
    notes: Sequence[str] = ()


def compare(spec: JobSpec, workers: int = 0, namespace: str = "") -> Compared:
    """Return what the cluster lacks, and what could not be found out.

    Args:
        spec: The training job.
        workers: As in `data_options`.
        namespace: Where the runs are; empty for the kubeconfig's, else that of the installation.
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
    except StepError:
        return Compared(notes=[f"{unknown}: this machine has no kubeconfig"])
    api.namespace = namespace or (api.namespace if api.namespace != "default" else INSTALLATION)
    try:
        problems, warnings = _secrets(api, spec)
        found = api.list("/api/v1/nodes")
    except ForbiddenError:
        return Compared((), warnings, problems, [f"{unknown}: you may not list nodes"])
    except StepError as error:
        return Compared(notes=[f"{unknown}: {first(error)}"])
    where = f" (cluster {api.address})"
    waits = [f"{text}{where}. Fix: {FIX}" for text in too_small(spec, found)]
    for job in asked_for(spec.pod, workers=workers):
        fix = f"lower pod.{job.name}, or add nodes"
        texts = too_large(job, job.manifest("run", 1, {}), found)
        waits += [f"{text}{where}. Fix: {fix}" for text in texts]
    warnings += [f"{it.what}{where}. Fix: {it.fix}" for it in shared_gpus(spec, found)]
    return Compared(waits, warnings, problems)


def _secrets(api: ClusterClient, spec: JobSpec) -> tuple[list[Problem], list[str]]:
    """Return the Secrets that the run names and that do not exist, if this is its namespace."""
    from kfp_tfjob.cluster.errors import ForbiddenError

    wanted: dict[str, tuple[str, list[str]]] = {}
    for role in ("chief", "worker"):
        settings = spec.pod.of(role)
        if settings.image_pull_secret:
            wanted[settings.image_pull_secret] = "pod.all.image_pull_secret", []
        for name, value in (settings.env or {}).items():
            if isinstance(value, SecretKey):
                keys = wanted.setdefault(value.secret, (f"pod.all.env.{name}", []))[1]
                keys += [] if value.key in keys else [value.key]
    wanted[spec.storage_secret] = "storage_secret", list(STORE_KEYS)
    problems, warnings = [], []
    try:
        if not any(api.get(api.core("serviceaccounts", it)) for it in (STANDALONE, MULTI_USER)):
            return [], []  # no run can be here
        for name, (parameter, keys) in wanted.items():
            found = api.get(api.core("secrets", name))
            has = (found or {}).get("data") or {}
            lacking = [key for key in keys if key not in has]
            if found is not None and (parameter == "storage_secret" or not lacking):
                continue
            what = f"Secret {name} does not exist in namespace {api.namespace}"
            if found is not None:
                what = f"Secret {name} has no key {' and no key '.join(lacking)}"
            fix = f"`{create_secret(name, keys, api.namespace)}`, or correct {parameter}"
            if name == PARAMETERS["storage_secret"].default:  # the pods may have an account
                warnings.append(f"{what}: pods use the keys of their node or account. Fix: {fix}")
            else:
                where = f"the cluster {api.address}"
                problems.append(Problem(what, name, f"a Secret of {where}", fix, parameter))
    except ForbiddenError:
        log.debug("this account may not read Secrets; preflight looks for them")
    return problems, warnings
