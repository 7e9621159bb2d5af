"""A run's tasks, from the API that replaces `run_details` after Kubeflow Pipelines 2.17.

Up to 2.17, the back end derives tasks from Argo's nodes: each step has a driver, and one task for
each try. In later versions, the driver and the launcher of a step write a single record, and a run
contains only the number of its records. The generated client of 2.17 drops this number and cannot
list records, so both are read as JSON. No back end with this API was run: it was read in the
sources of 2026-08-22. Called by runs.py.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from kfp_tfjob.common.errors import ConfigurationError

from .connection import BackEnd
from .errors import BackEndError

log = logging.getLogger(__name__)

_PATH = "/apis/v2beta1/runs/{run_id}/tasks"
_OVER = ("SUCCEEDED", "FAILED", "CANCELED", "SKIPPED")  # states of a run


@dataclass(frozen=True)
class TaskError:
    """The error of a failed task, as the generated client has it."""

    message: str


@dataclass(frozen=True)
class TaskRecord:
    """A record, with the attributes of the generated client's task that `steps_of` reads.

    Attributes:
        display_name: The task's name in the pipeline, for example `launch-tfjob`.
        state: `RUNNING`, `SUCCEEDED`, `FAILED` or `CANCELED`.
        create_time: When its driver, or a retry of the run, began it.
        end_time: When it ended; None before.
        error: Its error; None without one.
        start_time: Always None, because records do not contain the start of the step's own pod.
    """

    display_name: str
    state: str
    create_time: datetime | None
    end_time: datetime | None
    error: TaskError | None
    start_time: None = None


@dataclass(frozen=True)
class _Page:
    tasks: list[Mapping[str, Any]]
    next_page_token: str


def read_tasks(back_end: BackEnd, raw: Any, body: Mapping[str, Any]) -> list[Any]:
    """Return a run's tasks from either API.

    If the back end has records and does not list them, this logs a warning and returns none, now
    and in later calls, because everything else about the run is still known.

    Args:
        back_end: The back end.
        raw: The run, from the generated client.
        body: The JSON of the same reply.

    Raises:
        BackEndAwayError: The back end does not respond.
    """
    if raw.run_details and raw.run_details.task_details:
        return raw.run_details.task_details
    if not body.get("task_count") or not back_end.lists_tasks:
        return []
    page = partial(_page, back_end.sdk.runs.api_client)
    try:
        records = list(back_end.pages("list the run's tasks", page, "tasks", run_id=raw.run_id))
    except (ConfigurationError, BackEndError) as error:
        back_end.lists_tasks = False
        log.warning("note: the steps of runs are not shown: %s", error)
        return []
    # The driver of a step whose condition is false writes a record too.
    return [_task(record, raw) for record in records if record.get("state") != "SKIPPED"]


def _page(
    api_client: Any, run_id: str, page_token: str, page_size: int, _request_timeout: Any
) -> _Page:
    """Return a page of a run's records; the arguments are those that `BackEnd.pages` passes."""
    query = [("page_size", page_size), *([("page_token", page_token)] if page_token else ())]
    reply = api_client.call_api(
        _PATH,
        "GET",
        path_params={"run_id": run_id},
        query_params=query,
        header_params={"Accept": "application/json"},
        response_type="object",
        auth_settings=["Bearer"],
        _return_http_data_only=True,
        _request_timeout=_request_timeout,
    )
    reply = reply if isinstance(reply, Mapping) else {}
    return _Page(list(reply.get("tasks") or ()), str(reply.get("next_page_token") or ""))


def _task(record: Mapping[str, Any], raw: Any) -> TaskRecord:
    state, ended = str(record.get("state") or ""), _time(record.get("end_time"))
    if state == "RUNNING" and str(raw.state) in _OVER:
        # Only the launcher in a step's pod reports its end, so a killed pod's record stays RUNNING.
        state, ended = str(raw.state), raw.finished_at
    message = str((record.get("status_metadata") or {}).get("message") or "")
    return TaskRecord(
        display_name=str(record.get("name") or ""),
        state="SUCCEEDED" if state == "CACHED" else state,
        create_time=_time(record.get("create_time")),
        end_time=ended,
        error=TaskError(message) if message else None,
    )


def _time(text: Any) -> datetime | None:
    """Return a time in the JSON of protobuf, which is RFC 3339 in UTC; None if it is absent."""
    with suppress(TypeError, ValueError):
        return datetime.fromisoformat(text)
    return None
