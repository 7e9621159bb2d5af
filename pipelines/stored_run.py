"""Finds the stored objects of a run: by its address, on this machine, or by Kubeflow Pipelines.

Used by commands that read what a run has stored, such as logs and TensorBoard, because a user may
know only one of the three.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from kfp_tfjob.common.errors import ConfigurationError, DataError, Problem
from kfp_tfjob.common.formatting import listed
from kfp_tfjob.jobs.attempt_record import read_ends
from kfp_tfjob.jobs.verdict import Verdict
from kfp_tfjob.options.parameters import RunParameters
from kfp_tfjob.registry.run_folder import LAST, find, full_id
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.layout import OUTPUT, RUNS, Layout, RunLayout
from kfp_tfjob.storage.retry import Patience
from kfp_tfjob.storage.store import Store

from .local.embedded_store import embedded_store, is_held, store_of
from .local.home import PARAMETERS, Home

if TYPE_CHECKING:
    from .kubeflow.connection import Connection

_PATIENCE = Patience(seconds=10, first=0.5, silence=15)  # a person waits


@dataclass(frozen=True)
class StoredRun:
    """A run in its store.

    Attributes:
        store: The store.
        run: The run's objects.
        is_over: Returns whether the run has ended, so that it stores nothing more.
        label: Its name and state on Kubeflow Pipelines; empty for other runs.
        find_folder: Looks the run's folder up again; None if its address was given.
    """

    store: Store
    run: RunLayout
    is_over: Callable[[], bool] = field(repr=False)
    label: str = ""
    find_folder: Callable[[], RunLayout] | None = field(default=None, repr=False)

    def located(self) -> StoredRun:
        """Return the run with its current folder, which is unknown until preflight has begun.

        Raises:
            DataError: The record of the folder cannot be read.
        """
        return replace(self, run=self.find_folder()) if self.find_folder else self

    def lacks(self, problem: Problem) -> DataError:
        """Return the error that an object of the run is missing.

        If there are no objects of the run at all, the address or the store may be wrong, so the
        error names these instead.

        Args:
            problem: The problem to report if the run has other objects.
        """
        if any(self.store.list(self.run.base)):
            return DataError(problem)
        store = "pass the right store with --endpoint"
        if self.label:
            return DataError(
                Problem(
                    f"the run {self.label} has stored nothing yet",
                    received=f"nothing below {self.run.base}",
                    expected="the folder of a run that has started",
                    fix="wait until training has started, which `kfp-tfjob watch RUN` shows;"
                    f" or {store}",
                )
            )
        return DataError(
            Problem(
                f"there is no run {self.run.base}",
                received="nothing below that address",
                expected="the folder of a run that has started",
                fix=f"correct RUN, or {store}",
                name="run-not-found",
            )
        )


@contextmanager
def stored_run(
    identifier: str,
    home: Path,
    endpoint: str,
    connection: Connection,
    local: bool,
    task: str = "",
) -> Iterator[StoredRun]:
    """Open the store of a run; it is closed at the end of the block.

    Args:
        identifier: The address s3://BUCKET/PREFIX/runs/ID, the id of a run on this machine, or, on
            Kubeflow Pipelines, an id, the beginning of one, a name, or `last`.
        home: The folder of local runs.
        endpoint: URL of the store; empty for the AWS environment, else the run's parameter.
        connection: How to reach Kubeflow Pipelines.
        local: Whether to look only on this machine, where `last` is the newest run; without a back
            end, it does so if there are local runs.
        task: The key of a task in the run; usually empty.

    Raises:
        ConfigurationError: There is no such run, or `home` is not a folder of local runs.
    """
    local_home = Home(home.absolute())
    if local:
        local_home.check_exists()
    if "://" in identifier:
        run = _parse_folder(identifier).task(task)
        with store_of(run.base, endpoint, local_home, _PATIENCE) as store:
            yield StoredRun(store, run, lambda: _is_over(store, run))
    elif folder := local_folder(local_home, identifier, only_here(local_home, local, connection)):
        with _local_store(local_home, folder, endpoint) as (store, values):
            layout, name = Layout.parse(values["output_uri"]), folder.name

            def find_folder() -> RunLayout:
                return find(store, layout, name).task(task)

            def is_over() -> bool:
                # A local run that was killed leaves no record, but it releases its lock.
                return _is_over(store, find_folder()) or not is_held(local_home.folder / "lock")

            yield StoredRun(store, find_folder(), is_over, find_folder=find_folder)
    else:
        yield _back_end_run(identifier, endpoint, connection, task)


def _parse_folder(uri: str) -> RunLayout:
    address = S3Address.parse(uri, "RUN")
    parents = address.key.split("/")[:-1]
    if RUNS not in parents or OUTPUT in parents[parents.index(RUNS) :]:
        raise ConfigurationError(
            Problem(
                "RUN is not the folder of a run",
                received=uri,
                expected="s3://BUCKET/PREFIX/runs/ID",
                fix="cut the address after runs/ID, or give the run id",
            )
        )
    return RunLayout(address)


def only_here(home: Home, local: bool, connection: Connection) -> bool:
    """Return whether to look only on this machine: on request, or if there is nowhere else."""
    return local or bool(not connection.is_configured and home.runs())


def local_folder(home: Home, run_id: str, local: bool) -> Path | None:
    """Return a run's folder on this machine; None if no local run has this id.

    Raises:
        ConfigurationError: Several local runs begin with this id, or none does, although only these
            are searched (`local`).
    """
    folders = {path.name: path for path in home.runs()}
    if run_id == LAST and local and folders:
        return next(iter(folders.values()))
    run_id = full_id(run_id, folders)
    if run_id in folders:
        return folders[run_id]
    if local:
        raise ConfigurationError(_unknown_run(home, run_id, list(folders)))
    return None


def _unknown_run(home: Home, run_id: str, newest: list[str]) -> Problem:
    if not newest:
        return Problem(
            f"there is no run in {home.folder}",
            received=run_id,
            expected="the folder of local runs",
            fix="correct --home, or omit it for a run on Kubeflow Pipelines",
            name="run-not-found",
        )
    return Problem(
        f"there is no run {run_id} in {home.folder}",
        received=run_id,
        expected=f"an id, a unique id prefix or {LAST}; the newest: {listed(newest, 3)}",
        fix=f"list them with `kfp-tfjob runs{home.option}`; for a run on Kubeflow Pipelines, omit"
        " --home and set KF_PIPELINES_ENDPOINT",
        name="run-not-found",
    )


@contextmanager
def _local_store(home: Home, folder: Path, endpoint: str) -> Iterator[tuple[Store, RunParameters]]:
    """Open the store of a local run, and read the run's parameters."""
    values = json.loads((folder / PARAMETERS).read_bytes())
    endpoint = endpoint or str(values["storage_endpoint"])
    if endpoint:
        yield Store(endpoint, str(values["storage_region"]), patience=_PATIENCE), values
    else:
        with embedded_store(home, _PATIENCE) as store:
            yield store, values


def _back_end_run(identifier: str, endpoint: str, connection: Connection, task: str) -> StoredRun:
    """Return a run of Kubeflow Pipelines, with the store in its parameters."""
    from .kubeflow.connection import BackEnd
    from .kubeflow.following import PATIENCE
    from .kubeflow.records import endpoint_of
    from .kubeflow.run_lookup import find_run
    from .kubeflow.runs import read_run

    back_end = connection.open()
    record = find_run(back_end, identifier)
    parameters = record.parameters
    url = endpoint_of(str(parameters.get("storage_endpoint") or ""), endpoint)
    store = Store(url, str(parameters.get("storage_region", "")), patience=_PATIENCE)
    output = str(parameters.get("output_uri", ""))
    if not output:
        raise ConfigurationError(
            Problem(
                f"the run {record.name} has no parameter output_uri, so its logs cannot be found",
                received="a run of another pipeline",
                expected="a run of this pipeline, or the folder of a run",
                fix=f"pass the run's folder instead: s3://BUCKET/PREFIX/runs/{record.run_id}",
            )
        )
    layout = Layout.parse(output)

    def find_folder() -> RunLayout:
        return find(store, layout, record.run_id).task(task)

    @cache
    def patient_back_end() -> BackEnd:
        return BackEnd(back_end.connection, PATIENCE)

    def is_over() -> bool:
        return read_run(patient_back_end(), record.run_id).is_over

    label = f"{record.name} ({record.state})"
    return StoredRun(store, find_folder(), is_over, label, find_folder)


def _is_over(store: Store, run: RunLayout) -> bool:
    """Return whether a run's records show that no other attempt follows."""
    ends = list(read_ends(store, run).values())
    if ends and ends[-1] and ends[-1].job:  # the launcher writes this record after the log
        may_continue = any(
            verdict.recoverable for verdict in Verdict if verdict == ends[-1].verdict
        )
        return not may_continue or store.has(run.failure("json"))
    return not ends and store.has(run.failure("json"))
