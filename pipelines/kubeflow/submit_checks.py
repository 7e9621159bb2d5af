"""Checks a run against the cluster of this machine's kubeconfig, for the plan of `submit`.

The kubeconfig may name another cluster than the back end's. So a finding says which cluster was
checked, and none of them stops a submission. Called by `plan.py` and `why.py`.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from kfp_tfjob.checks.finding import Finding, Status, unknown
from kfp_tfjob.common.errors import StepError
from kfp_tfjob.jobs.spec import JobSpec

from .pods import INSTALLATION

_SECONDS = 2.0  # of retries; an optional check must not hold up a person


def check_cluster(spec: JobSpec, namespace: str = "") -> list[Finding]:
    """Return the findings that are not in order, including things that could not be checked.

    Args:
        spec: The run's job.
        namespace: The namespace of the runs; empty for the kubeconfig's.
    """
    from kfp_tfjob.checks.engine import At, check
    from kfp_tfjob.checks.namespace import account_of
    from kfp_tfjob.checks.step_pods import asked_for, step_pods
    from kfp_tfjob.checks.subject import Subject, open_cluster

    from ..step_resources import DEFAULTS

    fit = "whether the pods fit on the nodes was not checked"
    logging.getLogger("kfp_tfjob.storage.retry").setLevel(logging.ERROR)
    try:
        api = open_cluster(_SECONDS, spec.kind)
    except StepError:
        # Submitting needs only the back end, so this is no obstacle.
        return [unknown(f"{fit}: this machine has no kubeconfig")]
    api.namespace = namespace or (api.namespace if api.namespace != "default" else INSTALLATION)
    try:
        account = account_of(api)
    except StepError:
        account = ""  # the checks report why the cluster does not answer
    pods = asked_for(step_pods(spec.pod, DEFAULTS))
    findings = check(Subject(api, spec, account, step_pods=pods), At.SUBMIT)
    return [
        _name_cluster(finding, api.address)
        for finding in findings
        if finding.status is not Status.OK
    ]


def _name_cluster(finding: Finding, address: str) -> Finding:
    """Return a finding that names its cluster; a problem there may not be one of the back end's."""
    status = Status.WARNING if finding.status is Status.PROBLEM else finding.status
    return replace(finding, what=f"{finding.what} (cluster {address})", status=status)
