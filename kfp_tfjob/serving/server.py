"""Starts kserve's ModelServer for one model's champion."""

# pyright: reportMissingImports=false
from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from kfp_tfjob.serving.body_type import REQUEST, BodyType, not_json
from kfp_tfjob.serving.column_names import check_columns
from kfp_tfjob.serving.refusal import RefusedRequest, answer
from kfp_tfjob.storage.errors import ConfigurationError, DataError, Problem
from kfp_tfjob.storage.layout import Layout
from kfp_tfjob.storage.names import check_model_name
from kfp_tfjob.storage.store import Store

GRACE = 30  # seconds that open requests may last after SIGTERM, as in deploy/serving

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ServerOptions:
    """How to serve.

    Attributes:
        host: Where to listen; empty for everywhere in a pod, and else only on this machine.
        port: Where to listen.
        poll_seconds: Between two looks for a new champion.
        max_request_mb: The largest body of a request, in 10^6 bytes.
        sample_rows: The most rows of requests that are kept in the store, a minute; 0 for none.
        sample_without: Columns that are not kept.
        batch_milliseconds: How long a request may wait for others to be predicted with it; 0 to
            predict each alone.
        batch_rows: How many rows do not wait any longer.
    """

    host: str
    port: int
    poll_seconds: float
    max_request_mb: float
    sample_rows: int
    sample_without: tuple[str, ...]
    batch_milliseconds: float
    batch_rows: int


def serve(store: Store, layout: Layout, model_name: str, options: ServerOptions) -> None:
    """Serve a model's champion until SIGTERM or Ctrl-C.

    Raises:
        ConfigurationError: kserve is missing, the address is taken or not one of this machine,
            there is no champion, or it does not have a column that the sample omits.
        DataError: The champion cannot be proven or loaded.
        StoreUnavailableError: The store is unreachable.
    """
    ConfigurationError.raise_if(check_model_name(model_name))
    _load_kserve()
    from kserve.utils.utils import cpu_count

    from kfp_tfjob.serving.follower import Follower
    from kfp_tfjob.serving.listening import default_host, listen
    from kfp_tfjob.serving.metrics import Metrics
    from kfp_tfjob.serving.model_server import Server
    from kfp_tfjob.serving.protocol import ChampionModel, ChampionPlane, Champions, NoLoading
    from kfp_tfjob.serving.sampler import Sampler

    host = options.host or default_host()
    listener = listen(host, options.port)
    shown = f"[{host}]" if ":" in host else host
    metrics = Metrics(model_name)
    follower = Follower(store, layout, model_name, metrics)
    follower.start()
    assert follower.current is not None
    # Another column was meant, and must not be kept.
    columns = follower.current.columns.types
    check_columns("--sample-without", options.sample_without, columns)
    follower.follow(options.poll_seconds)
    sampler = (
        Sampler(store, layout, options.sample_rows, options.sample_without, metrics)
        if options.sample_rows
        else None
    )
    batches = (options.batch_milliseconds / 1000, options.batch_rows)
    model = ChampionModel(
        model_name,
        follower,
        metrics,
        cpu_count() or 1,
        sampler and sampler.add,
        batches if options.batch_milliseconds else None,
    )
    champions = Champions()
    server = Server(
        listener,
        registered_models=champions,
        enable_latency_logging=False,
        grace_period=GRACE,
    )
    server.dataplane = ChampionPlane(model_registry=champions)
    server.model_repository_extension = NoLoading(model_registry=champions)
    _prepare(options, metrics)
    log.warning("%s is served at http://%s:%d", model_name, shown, options.port)
    if sampler:
        sampler.start()
    try:
        server.start([model])
    finally:
        follower.stop()
        if sampler:
            sampler.stop()


def _load_kserve() -> None:
    """Import kserve, without letting it read the arguments of this program.

    Raises:
        ConfigurationError: It is not installed.
    """
    arguments = sys.argv
    sys.argv = arguments[:1]
    for name in ("kserve", "kserve.trace", "uvicorn"):  # before kserve would add handlers
        logging.getLogger(name).addFilter(_without_traces)
    logging.getLogger("kserve.trace").setLevel(logging.WARNING)
    try:
        import kserve.model_server  # noqa: F401
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            Problem(
                "the server is not installed",
                received=f"no module {error.name}",
                expected="kfp-tfjob with the extra `serve`",
                fix="pip install 'kfp-tfjob[serve]'",
            )
        ) from error
    finally:
        sys.argv = arguments


def _without_traces(record: logging.LogRecord) -> bool:
    """Log what clients did wrong in one line, and errors of the server with their trace."""
    from kserve import errors

    known = (errors.InvalidInput, errors.ModelNotFound, errors.ModelNotReady)
    if record.exc_info and isinstance(record.exc_info[1], (*known, NotImplementedError)):
        record.msg, record.args = "refused: %s", (str(record.exc_info[1])[:500],)
        record.exc_info, record.levelno, record.levelname = None, logging.WARNING, "WARNING"
    return True


def _prepare(options: ServerOptions, metrics: Any) -> None:
    """Add the limits and the errors of this project to the application of kserve."""
    from fastapi import Request
    from fastapi.exceptions import FastAPIDeprecationWarning, RequestValidationError
    from fastapi.responses import JSONResponse
    from kserve.model_server import app
    from starlette.exceptions import HTTPException

    from kfp_tfjob.serving.limits import Limits

    async def refused(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RefusedRequest)
        return JSONResponse(answer(error), error.status)

    async def failed(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, DataError)
        log.error("%s", error)
        return JSONResponse(answer(error), HTTPStatus.INTERNAL_SERVER_ERROR)

    async def malformed(request: Request, error: Any) -> JSONResponse:
        wrong = [
            _malformed(item)
            for item in error.errors()
            if "bytes" not in item["loc"]  # the other form of a body that kserve tries
        ]
        return JSONResponse(answer(RefusedRequest(*wrong)), HTTPStatus.BAD_REQUEST)

    async def other(request: Request, error: Any) -> JSONResponse:
        if error.status_code == HTTPStatus.BAD_REQUEST:  # FastAPI could not decode the text
            wrong = not_json(error.detail, REQUEST)
        else:
            wrong = Problem(
                f"{request.method} {request.url.path} cannot be answered",
                received=str(error.detail),
                expected="POST /v1/models/MODEL:predict or POST /v2/models/MODEL/infer",
                fix="compare the address and the method",
            )
        return JSONResponse(answer(RefusedRequest(wrong)), error.status_code)

    warnings.filterwarnings("ignore", category=FastAPIDeprecationWarning)  # of kserve's code
    app.add_exception_handler(RefusedRequest, refused)
    app.add_exception_handler(DataError, failed)
    app.add_exception_handler(RequestValidationError, malformed)
    app.add_exception_handler(HTTPException, other)
    app.add_middleware(BodyType)
    app.add_middleware(Limits, most=int(options.max_request_mb * 1e6), metrics=metrics)


def _malformed(item: Mapping[str, Any]) -> Problem:
    """Return the problem of one error that FastAPI reports."""
    place = [str(part) for part in item["loc"] if part not in ("body", "Request")]
    if item["type"] == "json_invalid":
        return not_json(f"{item['ctx']['error']} at character {place[0]}", REQUEST)
    if not place:
        return not_json("an empty body" if item["type"] == "missing" else item["msg"], REQUEST)
    return Problem(
        f"the request does not follow the Open Inference Protocol: {item['msg']}",
        received=".".join(place),
        expected=REQUEST,
        fix="send each column as an input",
    )
