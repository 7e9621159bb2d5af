"""Checks and submits a run, and makes sure that a repeated or lost request starts only one.

The back end accepts two runs of one name, so a request that is repeated after a lost response would
train twice. The name tells whether the run was started. Called by `client.py`.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from secrets import token_hex

from kfp_tfjob.checks.finding import local_paths
from kfp_tfjob.common.errors import ConfigurationError, Problem
from kfp_tfjob.components.preflight.plan import RunPlan
from kfp_tfjob.options.no_data import has_data
from kfp_tfjob.options.parameters import RunParameters

from .code_upload import check_code
from .connection import BackEnd
from .errors import BackEndAwayError
from .package import Package
from .runs import Run, named, read_run

log = logging.getLogger(__name__)


def check_run(values: RunParameters, package: Package) -> None:
    """Check a run's parameters and its code on this machine; preflight checks data in the store.

    Raises:
        ConfigurationError: One problem for each invalid parameter, piece of code or image.
    """
    problems: list[Problem | str] = []
    try:
        RunPlan.parse(values)
    except ConfigurationError as error:
        problems += error.problems  # the code and the images are checked too
    problems += local_paths({"data_uri": str(values["data_uri"])} if has_data(values) else {})
    invalid = {str(getattr(problem, "path", "")).partition(".")[0] for problem in problems}
    problems += [] if "model_code" in invalid else check_code(values, package.images)
    problems += package.problems(str(values.get("train_image", "")))
    ConfigurationError.raise_if(problems)


def check_name(back_end: BackEnd, name: str) -> None:
    """Raise a ConfigurationError if a run already has this name; an empty name is valid."""
    if name and (earlier := named(back_end, name)):
        raise ConfigurationError(_taken(earlier[0]))


def submit(
    back_end: BackEnd,
    package: Package,
    values: RunParameters,
    name: str = "",
    account: str = "",
) -> Run:
    """Start a run and return it; `Client.submit` describes the arguments.

    Without a name, the run is named after model_name and the time.

    Raises:
        ConfigurationError: A run has this name, or the back end rejects the parameters.
        BackEndAwayError: Nothing answers, and it is unknown whether the run was started.
    """
    check_name(back_end, name)
    run_name = name or f"{values['model_name']}-{datetime.now(UTC):%Y%m%d-%H%M%S}-{token_hex(2)}"
    models = back_end.sdk.api_models
    request = models.V2beta1Run(
        display_name=run_name,
        experiment_id=back_end.experiment_id(),
        pipeline_spec=dict(package.spec),
        runtime_config=models.V2beta1RuntimeConfig(parameters=dict(values)),
        service_account=account or None,
    )
    try:
        run_id = back_end.once(
            "start the run", back_end.sdk.runs.run_service_create_run, run=request
        ).run_id
    except BackEndAwayError:
        # The response may have been lost.
        started = named(back_end, run_name)
        if not started:
            raise
        log.warning("the response was lost, but the run was started")
        run_id = started[0].run_id
    return read_run(back_end, run_id)


def _taken(run: Run) -> Problem:
    return Problem(
        f"a run named {run.name} already exists",
        received=f"{run.run_id}, {run.state}, submitted {run.created}",
        expected="a unique name",
        fix=f"follow it with `kfp-tfjob watch {run.run_id[:8]}`, or choose another --run-name",
    )
