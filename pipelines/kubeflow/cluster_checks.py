"""Compares a run with the cluster of this machine's kubeconfig, which may not be the back end's."""

from __future__ import annotations

import logging
from dataclasses import replace

from kfp_tfjob.checks.finding import Finding, Status, unknown
from kfp_tfjob.jobs.spec import JobSpec
from kfp_tfjob.pipelines.kubeflow.pods import INSTALLATION
from kfp_tfjob.storage.errors import StepError

_SECONDS = 2.0  # of retries; an optional check must not hold up a person


def look(spec: JobSpec, namespace: str = "") -> list[Finding]:
    """Return what the cluster lacks for a run, and what could not be found out."""
    from kfp_tfjob.checks.engine import At, check
    from kfp_tfjob.checks.namespace import account_of
    from kfp_tfjob.checks.step_pods import asked_for, step_pods
    from kfp_tfjob.checks.subject import Subject, open_cluster
    from kfp_tfjob.pipelines.step_resources import DEFAULTS

    fit = "whether the pods fit on the nodes was not checked"
    logging.getLogger("kfp_tfjob.storage.retry").setLevel(logging.ERROR)
    try:
        api = open_cluster(_SECONDS, spec.kind)
    except StepError:
        return [unknown(f"{fit}: this machine has no kubeconfig")]
    api.namespace = namespace or (api.namespace if api.namespace != "default" else INSTALLATION)
    try:
        account = account_of(api)
    except StepError:
        account = ""
    pods = asked_for(step_pods(spec.pod, DEFAULTS))
    found = check(Subject(api, spec, account, step_pods=pods), At.SUBMIT)
    return [_of_another(it, api.address) for it in found if it.status is not Status.OK]


def _of_another(found: Finding, address: str) -> Finding:
    """Return a finding with its cluster; the run would start in the back end's."""
    status = Status.WARNING if found.status is Status.PROBLEM else found.status
    return replace(found, what=f"{found.what} (cluster {address})", status=status)
