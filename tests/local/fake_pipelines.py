"""A fake of the API server of Kubeflow Pipelines (v2beta1), for tests where no real one runs.

It is a real HTTP server. Every answer is made of the models of kfp_server_api, so the SDK parses it
as it parses the real server's. Errors have the form of the real server. Nothing runs behind it: a
test moves its runs on by changing `runs`.
"""

import json
import re
import ssl
import uuid
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Self
from urllib.parse import parse_qs, unquote, urlsplit

import kfp_server_api as api

from tests.http_server import Handler, serving

BASE = "/apis/v2beta1"
_OVER = ("SUCCEEDED", "FAILED", "CANCELED", "SKIPPED")
_CODES = {400: 3, 401: 16, 403: 7, 404: 5, 409: 6, 500: 13, 503: 14}


class Refusal(Exception):
    """An error of the server."""

    def __init__(self, status: int, message: str) -> None:
        self.status, self.message = status, message


class FakePipelines:
    """The server. What it has is by id, in the order of creation."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.runs: dict[str, api.V2beta1Run] = {}
        self.experiments: dict[str, api.V2beta1Experiment] = {}
        self.schedules: dict[str, api.V2beta1RecurringRun] = {}
        self.versions: dict[str, Mapping[str, Any]] = {}  # specs of uploaded pipelines
        # Task records by run, as JSON; only a back end after 2.17 has them.
        self.records: dict[str, list[dict[str, Any]]] = {}
        self.multi_user, self.token = False, ""  # requests must have the token, if there is one
        self.requests: list[tuple[str, str]] = []
        # Called before each request; may raise Refusal, or ConnectionError to hang up.
        self.broken: Callable[[str, str], None] = lambda method, path: None
        self._serving = serving(_Requests, tls=tls, fake=self)

    def __enter__(self) -> Self:
        self.host = self._serving.__enter__().url
        return self

    def __exit__(self, *_: object) -> None:
        self._serving.__exit__(None, None, None)

    def add(self, name: str, state: str = "RUNNING", **fields: Any) -> api.V2beta1Run:
        now = datetime.now(UTC)
        known = {"experiment_id": "e", "created_at": now, "storage_state": "AVAILABLE"}
        run = api.V2beta1Run(
            run_id=str(uuid.uuid4()), display_name=name, state=state, **known | fields
        )
        self.runs[run.run_id] = run
        return run

    def task(self, run: api.V2beta1Run, name: str, state: str, **fields: Any) -> None:
        details = run.run_details or api.V2beta1RunDetails(task_details=[])
        kept = [task for task in details.task_details if task.display_name != name]
        known = {"create_time": datetime.now(UTC), "start_time": datetime.now(UTC)}
        detail = api.V2beta1PipelineTaskDetail(
            run_id=run.run_id,
            task_id=str(uuid.uuid4()),
            display_name=name,
            state=state,
            **known | fields,
        )
        run.run_details = api.V2beta1RunDetails(task_details=[*kept, detail])

    def fails(self, path: str, *errors: Exception, method: str = "") -> None:
        """Let the first requests for a path, or those of one method, end with these errors."""
        left = iter(errors)

        def broken(asked: str, where: str) -> None:
            if where.endswith(path) and asked.endswith(method) and (error := next(left, None)):
                raise error

        self.broken = broken

    def answer(self, method: str, path: str, query: Mapping[str, str], body: Any) -> Any:
        if path == "/healthz" and method == "GET":
            return api.V2beta1GetHealthzResponse(multi_user=self.multi_user)
        if path == "/pipelines/upload":
            return api.V2beta1Pipeline(pipeline_id=str(uuid.uuid4()))
        if found := re.fullmatch(r"/pipelines/[^/]+/versions/([^/]+)", path):
            return api.V2beta1PipelineVersion(pipeline_spec=self.versions[found[1]])
        if path == "/experiments":
            return self._experiments(method, query, body)
        if path == "/runs":
            return self._create(body) if method == "POST" else self._list(query)
        if (found := re.fullmatch(r"/runs/([^/:]+)/tasks", path)) and found[1] in self.records:
            return self._tasks(found[1], query)
        if found := re.fullmatch(r"/runs/([^/:]+)(?::(\w+))?", path):
            return self._run(method, found[1], found[2] or "")
        if path == "/recurringruns":
            return self._schedules(method, query, body)
        if found := re.fullmatch(r"/recurringruns/([^/:]+)(?::(\w+))?", path):
            return self._schedule(method, found[1], found[2] or "")
        raise Refusal(404, "Not Found")

    def _experiments(self, method: str, query: Mapping[str, str], body: Any) -> Any:
        if method == "POST":
            made = self._parsed(body, "V2beta1Experiment")
            made.experiment_id = str(uuid.uuid4())
            self.experiments[made.experiment_id] = made
            return made
        if self.multi_user and not query.get("namespace"):
            raise Refusal(400, "Invalid input error: ListExperiments needs a namespace")
        found = _chosen(self.experiments.values(), query)
        return api.V2beta1ListExperimentsResponse(experiments=found, total_size=len(found))

    def _create(self, body: Any) -> api.V2beta1Run:
        run = self._parsed(body, "V2beta1Run")
        if not (run.pipeline_spec or run.pipeline_version_reference):
            raise Refusal(500, "Invalid input error: a template with an empty pipeline spec")
        if not run.display_name:
            raise Refusal(400, "Invalid input error: the run name is empty")
        run.run_id, run.state = str(uuid.uuid4()), "PENDING"
        run.created_at, run.storage_state = datetime.now(UTC), "AVAILABLE"
        self.runs[run.run_id] = run
        return run

    def _list(self, query: Mapping[str, str]) -> api.V2beta1ListRunsResponse:
        found = _chosen(list(self.runs.values()), query)
        if query.get("sort_by", "").endswith(" desc"):
            found.reverse()
        size, start = int(query.get("page_size") or 20), int(query.get("page_token") or 0)
        more = str(start + size) if start + size < len(found) else ""
        return api.V2beta1ListRunsResponse(
            runs=found[start : start + size], total_size=len(found), next_page_token=more
        )

    def _run(self, method: str, run_id: str, verb: str) -> Any:
        run = self.runs.get(run_id)
        if run is None:
            raise Refusal(404, f"Failed to get a run: ResourceNotFoundError: {run_id} not found")
        if method == "DELETE":
            del self.runs[run_id]
            return {}
        if verb == "terminate":
            if run.state in _OVER:
                raise Refusal(400, f"Invalid input error: Failed to terminate {run_id}")
            run.state = "CANCELING"
            return {}
        if verb == "retry":
            if run.state not in ("FAILED", "CANCELED"):
                raise Refusal(400, "Workflow must be Failed/Error to retry")
            run.state, run.finished_at = "RUNNING", None
            return {}
        if records := self.records.get(run_id):
            return api.ApiClient().sanitize_for_serialization(run) | {"task_count": len(records)}
        return run

    def _tasks(self, run_id: str, query: Mapping[str, str]) -> dict[str, Any]:
        records, start = self.records[run_id], int(query.get("page_token") or 0)
        end = start + int(query["page_size"])
        more = {"next_page_token": str(end)} if end < len(records) else {}
        return {"tasks": records[start:end], "total_size": len(records), **more}

    def _schedules(self, method: str, query: Mapping[str, str], body: Any) -> Any:
        if method == "POST":
            made = self._parsed(body, "V2beta1RecurringRun")
            if not 1 <= int(made.max_concurrency or 0) <= 10:
                raise Refusal(400, "Invalid input error: max concurrency must be from 1 to 10")
            made.recurring_run_id = str(uuid.uuid4())
            made.status = "ENABLED" if made.mode == "ENABLE" else "DISABLED"
            made.created_at = datetime.now(UTC)
            self.schedules[made.recurring_run_id] = made
            return made
        found = _chosen(self.schedules.values(), query)
        found.reverse()
        return api.V2beta1ListRecurringRunsResponse(recurring_runs=found, total_size=len(found))

    def _schedule(self, method: str, schedule_id: str, verb: str) -> Any:
        if schedule_id not in self.schedules:
            raise Refusal(404, f"ResourceNotFoundError: Job {schedule_id} not found")
        found = self.schedules[schedule_id]
        if method == "DELETE":
            del self.schedules[schedule_id]
            return {}
        if verb:
            found.status = {"enable": "ENABLED", "disable": "DISABLED"}[verb]
            return {}
        return found

    def _parsed(self, body: Any, model: str) -> Any:
        """Return a body as a model of the API; an unknown field is refused, as protobuf does."""
        for unknown in _unknown(body, model):
            raise Refusal(400, f'proto: (line 1:2): unknown field "{unknown}"')
        reply = type("Reply", (), {"data": json.dumps(body)})
        return api.ApiClient().deserialize(reply, model)


class _Requests(Handler):
    """Hands requests to the fake, and its answers back."""

    def do_GET(self) -> None:
        fake, url, data = self.server.fake, urlsplit(self.path), self.body() or b"null"
        is_json = self.headers.get_content_type() == "application/json"
        body = json.loads(data) if is_json else None
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        fake.requests.append((self.command, unquote(url.path)))
        try:
            fake.broken(self.command, url.path)
            if fake.token and self.headers.get("Authorization") != f"Bearer {fake.token}":
                raise Refusal(401, "Unauthenticated: the request has no valid token")
            path = unquote(url.path).removeprefix(BASE)
            found = fake.answer(self.command, path, query, body)
        except Refusal as error:
            self.answer(_error(error), error.status)
        except ConnectionError:
            self.close_connection = True
        else:
            self.answer(api.ApiClient().sanitize_for_serialization(found))

    do_POST = do_DELETE = do_GET


def _unknown(value: Any, kind: str) -> Iterator[str]:
    """Yield the keys of JSON that a model of the API does not have, at any depth."""
    if listed := re.fullmatch(r"list\[(.*)\]", kind):
        for item in value:
            yield from _unknown(item, listed[1])
    elif fields := getattr(getattr(api, kind, None), "attribute_map", None):
        names = {name: field for field, name in fields.items()}
        for name, item in value.items():
            if name in names:
                yield from _unknown(item, getattr(api, kind).openapi_types[names[name]])
            else:
                yield name


def _error(error: Refusal) -> dict[str, Any]:
    code = _CODES.get(error.status, 13)
    status = {"@type": "type.googleapis.com/google.rpc.Status", "code": code}
    return {
        "code": code,
        "message": error.message,
        "details": [status | {"message": error.message.rpartition("Error: ")[2]}],
    }


def _chosen(items: Any, query: Mapping[str, str]) -> list[Any]:
    found = list(items)
    if experiment := query.get("experiment_id"):
        found = [item for item in found if item.experiment_id == experiment]
    for predicate in json.loads(query.get("filter") or "{}").get("predicates", ()):
        key = {"name": "display_name"}.get(predicate["key"], predicate["key"])
        wanted = predicate.get("stringValue", predicate.get("string_value"))
        assert predicate["operation"] == "EQUALS"
        found = [item for item in found if str(getattr(item, key)) == wanted]
    return found
