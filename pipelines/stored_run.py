"""Finds the stored objects of a run: by its address, on this machine, or by Kubeflow Pipelines."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from kfp_tfjob.jobs.attempt_record import read_ends
from kfp_tfjob.jobs.verdict import Verdict
from kfp_tfjob.options.pipeline import RunParameters
from kfp_tfjob.pipelines.local.embedded_store import embedded_store, is_held, store_of
from kfp_tfjob.pipelines.local.home import PARAMETERS, Home
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.errors import ConfigurationError, DataError, Problem
from kfp_tfjob.storage.formatting import listed
from kfp_tfjob.storage.layout import OUTPUT, RUNS, Layout, RunLayout
from kfp_tfjob.storage.retry import Patience
from kfp_tfjob.storage.run_folder import find, full_id
from kfp_tfjob.storage.store import Store

if TYPE_CHECKING:
    from kfp_tfjob.pipelines.kubeflow.connection import Connection

_PATIENCE = Patience(seconds=10, first=0.5, silence=15)  # a person waits
LAST = "last"


@dataclass(frozen=True)
class StoredRun:
    """A run in its store, and the name and state by which Kubeflow Pipelines knows it, if any."""

    store: Store
    run: RunLayout
    is_over: Callable[[], bool] = field(repr=False)
    known: str = ""

    def lacks(self, what: Problem) -> DataError:
        """Return the error of a run without something, or without anything: it may be no run."""
        if any(self.store.list(self.run.base)):
            return DataError(what)
        store = "pass the right store with --endpoint"
        if self.known:
            return DataError(
                Problem(
                    f"the run {self.known} has stored nothing yet",
                    received=f"nothing below {self.run.base}",
                    expected="the folder of a run that has started",
                    fix=f"wait until its training has started: kfp-tfjob watch; or {store}",
                )
            )
        return DataError(
            Problem(
                f"there is no run {self.run.base}",
                received="nothing below that address",
                expected="the folder of a run that has started",
                fix=f"correct RUN, or {store}",
            )
        )


@contextmanager
def stored_run(
    given: str, home: Path, endpoint: str, connection: Connection, local: bool, task: str = ""
) -> Iterator[StoredRun]:
    """Open the store of a run.

    Args:
        given: The address s3://BUCKET/PREFIX/runs/ID, a run's id on this machine, or what
            Kubeflow Pipelines knows: an id, the beginning of one, a name, or `last`.
        home: The folder of local runs.
        endpoint: URL of the store; empty for the AWS environment, else the run's parameter.
        connection: How to reach Kubeflow Pipelines.
        local: Whether to look only on this machine, where `last` is the newest run; without a back
            end, it does so if there are local runs.
        task: The key of a task in the run; usually empty.
    """
    place = Home(home.absolute())
    if "://" in given:
        run = _folder(given).task(task)
        with store_of(run.base, endpoint, place, _PATIENCE) as store:
            yield StoredRun(store, run, lambda: _is_over(store, run))
    elif folder := local_folder(place, given, only_here(place, local, connection)):
        with _local_store(place, folder, endpoint) as (store, values):
            run = find(store, Layout.parse(values["output_uri"]), folder.name).task(task)
            yield StoredRun(
                store, run, lambda: _is_over(store, run) or not is_held(place.folder / "lock")
            )
    else:
        yield _of_back_end(given, endpoint, connection, task)


def _folder(given: str) -> RunLayout:
    address = S3Address.parse(given, "RUN")
    above = address.key.split("/")[:-1]
    if RUNS not in above or OUTPUT in above[above.index(RUNS) :]:
        raise ConfigurationError(
            Problem(
                "RUN is not the folder of a run",
                received=given,
                expected="s3://BUCKET/PREFIX/runs/ID",
                fix="copy it from the page of the last step, or give the run id",
            )
        )
    return RunLayout(address)


def only_here(home: Home, local: bool, connection: Connection) -> bool:
    """Return whether to look only on this machine: on request, or if there is nowhere else."""
    return local or bool(not connection.is_configured and home.runs())


def local_folder(home: Home, given: str, local: bool) -> Path | None:
    """Return a run's folder on this machine; None if it is not one.

    Raises:
        ConfigurationError: Several runs begin with `given`, or none does and `local` is true.
    """
    known = {path.name: path for path in home.runs()}
    if given == LAST and local and known:
        return next(iter(known.values()))
    given = full_id(given, known)
    if given in known:
        return known[given]
    if local:
        raise ConfigurationError(_unknown(home, given, list(known)))
    return None


def _unknown(home: Home, given: str, newest: list[str]) -> Problem:
    if not newest:
        return Problem(
            f"there is no run in {home.folder}",
            received=given,
            expected="the folder of local runs",
            fix="correct --home, or omit it for a run on Kubeflow Pipelines",
        )
    return Problem(
        f"there is no run {given} in {home.folder}",
        received=given,
        expected=f"an id, a unique id prefix or {LAST}; the newest: {listed(newest, 3)}",
        fix=f"list them with `kfp-tfjob runs{home.option}`; for a run on Kubeflow Pipelines, omit"
        " --home and set KF_PIPELINES_ENDPOINT",
    )


@contextmanager
def _local_store(home: Home, folder: Path, endpoint: str) -> Iterator[tuple[Store, RunParameters]]:
    """Open the store of a local run."""
    values = json.loads((folder / PARAMETERS).read_bytes())
    endpoint = endpoint or str(values["storage_endpoint"])
    if endpoint:
        yield Store(endpoint, str(values["storage_region"]), patience=_PATIENCE), values
    else:
        with embedded_store(home, _PATIENCE) as store:
            yield store, values


def _of_back_end(given: str, endpoint: str, connection: Connection, task: str) -> StoredRun:
    from kfp_tfjob.pipelines.kubeflow.records import endpoint_of
    from kfp_tfjob.pipelines.kubeflow.runs import find_run, read_run

    back_end = connection.open()
    found = find_run(back_end, given)
    parameters = found.parameters
    url = endpoint_of(str(parameters.get("storage_endpoint") or ""), endpoint)
    store = Store(url, str(parameters.get("storage_region", "")), patience=_PATIENCE)
    output = str(parameters.get("output_uri", ""))
    if not output:
        raise ConfigurationError(
            Problem(
                f"the run {found.name} has no parameter output_uri, so its logs cannot be found",
                received="a run of another pipeline",
                expected="a run of this pipeline, or the folder of a run",
                fix=f"name the folder: s3://BUCKET/PREFIX/runs/{found.run_id}",
            )
        )
    run = find(store, Layout.parse(output), found.run_id).task(task)
    known = f"{found.name} ({found.state})"
    return StoredRun(store, run, lambda: read_run(back_end, found.run_id).is_over, known)


def _is_over(store: Store, run: RunLayout) -> bool:
    """Tell from a run's records whether it gets no more attempts."""
    ends = list(read_ends(store, run).values())
    if ends and ends[-1] and ends[-1].job:  # the launcher's record says that its log is stored
        may_continue = any(it.recoverable for it in Verdict if it == ends[-1].verdict)
        return not may_continue or store.has(run.failure("json"))
    return not ends and store.has(run.failure("json"))
