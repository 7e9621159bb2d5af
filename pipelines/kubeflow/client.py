"""The Python client: what the commands do, for programs.

from kfp_tfjob import Client

client = Client("http://localhost:8080")
run = client.submit({"data_uri": "s3://data/digits.csv", "data_label": "digit",
"model_name": "digits", "output_uri": "s3://results/team-a"})
for moment in client.watch(run.run_id):
print(moment.run.state, moment.progress)
print(client.why(run.run_id).reason)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

from kfp_tfjob.options.parameters import RunParameters, completed

from . import ending, following, plan, schedules
from . import package as packages
from .connection import BackEnd, Connection
from .package import Package
from .pods import RunOnCluster
from .records import Records
from .run_lookup import find_run
from .runs import Run, all_parameters, list_runs, read_run, with_steps
from .schedules import Schedule, Trigger
from .why import Why, explain, with_verdict

_AT_ONCE = 8  # runs whose records are read at the same time; each waits for the store


class Client:
    """A client of one Kubeflow Pipelines back end; it connects with the first call.

    A run may be named by its id, a unique prefix of the id, its name, or `last`. Every method
    raises ConfigurationError for wrong input or missing permissions, UnknownRunError for a run that
    does not exist, and BackEndAwayError if the back end does not respond. All are StepErrors.

    Args:
        host: URL of the UI or the API; empty for KF_PIPELINES_ENDPOINT, else the service inside
            the cluster, else the kubeconfig.
        namespace: The namespace of the runs, for a multi-user back end; empty for the namespace in
            the SDK's context, else the pod's.
        experiment: The experiment of new runs; empty for KF_PIPELINES_DEFAULT_EXPERIMENT_NAME, else
            Default.
        token_file: A file with a bearer token, read again for every call; empty for
            KF_PIPELINES_SA_TOKEN_PATH.
        ca_file: The CA certificates of the back end; empty for SSL_CERT_FILE.
        endpoint: URL of the store as this machine reaches it; empty for AWS_ENDPOINT_URL, else the
            run's own. The keys come from the AWS environment.
    """

    def __init__(
        self,
        host: str = "",
        namespace: str = "",
        experiment: str = "",
        token_file: str = "",
        ca_file: str = "",
        endpoint: str = "",
    ) -> None:
        self._connection = Connection(host, namespace, experiment, token_file, ca_file)
        self._endpoint = endpoint
        self._checked: RunParameters | None = None  # the last parameters that `plan` has checked

    @classmethod
    def of(cls, connection: Connection, endpoint: str = "") -> Client:
        """Return the client of a connection."""
        return cls(**asdict(connection), endpoint=endpoint)

    @cached_property
    def back_end(self) -> BackEnd:
        """The open connection."""
        return self._connection.open()

    def package(self, pipeline: str | Path = "") -> Package:
        """Return a compiled pipeline.

        Args:
            pipeline: A YAML file; empty for the pipeline of this version, compiled now.

        Raises:
            ConfigurationError: The file cannot be read, or contains another pipeline.
        """
        return packages.from_file(Path(pipeline)) if pipeline else packages.this_version()

    def plan(
        self,
        parameters: Mapping[str, Any],
        package: Package | None = None,
        sources: Mapping[str, str] | None = None,
        name: str = "",
    ) -> plan.Plan:
        """Check a run, and return what it needs, without submitting it.

        Args:
            parameters: Run parameters; the pipeline's defaults apply to all others.
            package: The pipeline; None for this version's.
            sources: The source of each parameter, for the plan.
            name: The run's name, which no other run may have; empty for a new name.

        Returns:
            Pods, GPUs, CPU and memory.

        Raises:
            ConfigurationError: One problem for each invalid parameter.
        """
        from . import submission  # loads pyarrow: a second

        package = package or packages.this_version()
        values = _completed(parameters, package)
        submission.check_run(values, package)
        self._checked = values
        if sources is None:
            sources = dict.fromkeys(parameters, "parameters")
        submission.check_name(self.back_end, name)
        return plan.make_plan(values, package, sources, self.back_end.namespace)

    def submit(
        self,
        parameters: Mapping[str, Any],
        package: Package | None = None,
        name: str = "",
        account: str = "",
    ) -> Run:
        """Check and start a run.

        Model code that is a path of this machine is copied to the store first, below output_uri.

        Args:
            parameters: Run parameters; the pipeline's defaults apply to all others.
            package: The pipeline; None for this version's.
            name: The run's name, which no other run may have, so that a repeated call does not
                start a second run; empty for a new name.
            account: The service account of its pods; empty for the back end's.

        Returns:
            The run.

        Raises:
            ConfigurationError: A parameter is invalid, or a run has this name.
        """
        from . import submission

        package = package or packages.this_version()
        values = self._prepare(parameters, package)
        return submission.submit(self.back_end, package, values, name, account)

    def schedule(
        self,
        parameters: Mapping[str, Any],
        trigger: Trigger,
        package: Package | None = None,
        name: str = "",
        at_once: int = 1,
        account: str = "",
    ) -> tuple[Schedule, list[Schedule]]:
        """Check and create a schedule, replacing one with the same name.

        Args:
            parameters: Run parameters; the pipeline's defaults apply to all others.
            trigger: The times at which it starts runs.
            package: The pipeline; None for this version's.
            name: Its name; empty for the model's.
            at_once: How many of its runs may be in flight, 1 to 10.
            account: The service account of the pods; empty for the back end's.

        Returns:
            The schedule, and the old schedules that are kept, paused, because of their runs in
            flight.
        """
        package = package or packages.this_version()
        values = self._prepare(parameters, package)
        name = name or str(values["model_name"])
        return schedules.create(self.back_end, package, values, name, trigger, at_once, account)

    def _prepare(self, parameters: Mapping[str, Any], package: Package) -> RunParameters:
        """Return all run parameters after checking them and copying local code to the store."""
        from . import code_upload, submission

        values = _completed(parameters, package)
        if values != self._checked:
            submission.check_run(values, package)
        return code_upload.copy_code(values, self._endpoint)

    def schedules(self, name: str = "") -> list[Schedule]:
        """Return the schedules of this pipeline, or those of one name, the newest first."""
        return list(schedules.list_schedules(self.back_end, name))

    def delete_schedule(self, schedule: str) -> Schedule:
        """Delete and return a schedule; one with runs in flight is only paused."""
        deleted = schedules.find_schedule(self.back_end, schedule)
        schedules.delete(self.back_end, deleted)
        return deleted

    def runs(
        self,
        limit: int = 10,
        model: str = "",
        verdicts: bool = True,
        tell: Callable[[str], None] = lambda text: None,
    ) -> list[Run]:
        """Return the newest runs of this pipeline.

        Args:
            limit: The highest number of runs.
            model: Only runs of this model; empty for all models.
            verdicts: Whether to read their verdicts from the store; without access they stay empty.
            tell: Called with the reason why verdicts are missing.
        """
        listed_runs = islice(list_runs(self.back_end, model), limit)
        newest = [with_steps(self.back_end, run) for run in listed_runs]
        if not verdicts:
            return newest
        all_records = [Records(run, self._endpoint) for run in newest]
        first_records: dict[tuple[str, str], Records] = {}
        for run, records in zip(newest, all_records, strict=True):
            if run.is_over and not records.trouble:
                first_records.setdefault(records.bucket, records)
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            # One run shows whether a bucket can be read, so that a command does not wait for each.
            list(pool.map(Records.with_verdict, first_records.values()))
            unreadable = {records.bucket for records in first_records.values() if records.trouble}
            cluster_troubles: list[str] = []
            with_verdicts = list(
                pool.map(
                    lambda run, records: (
                        run
                        if records.bucket in unreadable
                        else with_verdict(records, self._cluster(run.run_id), cluster_troubles)
                    ),
                    newest,
                    all_records,
                )
            )
        for trouble in dict.fromkeys(filter(None, (records.trouble for records in all_records))):
            tell(trouble)
        return with_verdicts

    def run(self, run: str) -> Run:
        """Return one run, with its verdict if it is over and the store can be read."""
        one_run = find_run(self.back_end, run)
        records = Records(one_run, self._endpoint)
        return with_verdict(records, self._cluster(one_run.run_id))

    def watch(self, run: str, seconds: float = following.INTERVAL) -> Iterator[following.Moment]:
        """Yield the run's state whenever it changes, until the run ends.

        Args:
            run: The run.
            seconds: The time between two calls of the back end, in seconds.
        """
        watched = find_run(self.back_end, run)
        patient = BackEnd(self.back_end.connection, following.PATIENCE)
        yield from following.follow(
            lambda: read_run(patient, watched.run_id),
            Records(watched, self._endpoint),
            self._cluster(watched.run_id)(),
            seconds,
        )

    def cancel(
        self, run: str, limit: float = 300, tell: Callable[[str], None] = lambda text: None
    ) -> ending.Cancelled:
        """End a run, and wait until none of its pods run.

        Args:
            run: The run.
            limit: How long to wait, in seconds.
            tell: Called with the run's state and its remaining pods whenever they change.

        Raises:
            ConfigurationError: The run is over.
        """
        return ending.cancel(
            self.back_end, find_run(self.back_end, run), self._endpoint, limit, tell
        )

    def retry(self, run: str) -> Run:
        """Rerun a run's failed step and those after it; training resumes.

        The run keeps its id. Steps that succeeded do not run again.

        Raises:
            ConfigurationError: The run has not failed.
        """
        failed = find_run(self.back_end, run)
        ending.check_can_be_retried(failed)
        self.back_end.once(
            "retry the run", self.back_end.sdk.runs.run_service_retry_run, run_id=failed.run_id
        )
        return read_run(self.back_end, failed.run_id)

    def why(self, run: str) -> Why:
        """Return why a run failed, is waiting or published nothing, and what to do."""
        one_run = find_run(self.back_end, run)
        records = Records(one_run, self._endpoint)
        run_id = one_run.run_id
        return explain(
            one_run,
            records,
            self._cluster(run_id),
            lambda: all_parameters(self.back_end, run_id),
        )

    def _cluster(self, run_id: str) -> Callable[[], RunOnCluster]:
        """Return a function that connects to the cluster of a run."""
        return lambda: RunOnCluster(run_id, self.back_end.namespace)


def _completed(parameters: Mapping[str, Any], package: Package) -> RunParameters:
    """Return all run parameters: `parameters`, completed by the pipeline's defaults."""
    from kfp_tfjob.components.preflight.parameters import defaults

    return completed(defaults(), package.defaults, parameters)
