"""Starts kserve's ModelServer for one model's champion; called by `kfp-tfjob serve`.

kserve is imported late, because it is an optional dependency and changes the process on import: it
parses sys.argv and adds log handlers.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from kfp_tfjob.common.errors import ConfigurationError, DataError, Problem
from kfp_tfjob.common.names import check_model_name
from kfp_tfjob.storage.layout import Layout
from kfp_tfjob.storage.store import Store

from .body_type import REQUEST, BodyType, not_json
from .column_names import check_columns
from .refusal import RefusedRequest, answer

GRACE = 30  # seconds for open requests after SIGTERM, as in deploy/serving

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ServerOptions:
    """The server's options.

    Attributes:
        host: The listening address; empty for all interfaces in a pod, otherwise this machine.
        port: The listening port.
        poll_seconds: The time between two polls for a new champion.
        max_request_mb: The largest body of a request, in 10^6 bytes.
        sample_rows: The most rows of requests that are stored each minute; 0 to store none.
        sample_without: Columns that are not stored.
        batch_milliseconds: The longest time that a request waits for a batch; 0 to predict each
            request alone.
        batch_rows: The number of rows at which a batch starts at once.
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
            there is no champion, or it does not have a column of `sample_without`.
        DataError: The champion cannot be verified or loaded.
        StoreUnavailableError: The store is unreachable.
    """
    ConfigurationError.raise_if(check_model_name(model_name))
    _load_kserve()
    from kserve.utils.utils import cpu_count

    from .follower import Follower
    from .listening import default_host, listen
    from .metrics import Metrics
    from .model_server import Server
    from .protocol import ChampionModel, ChampionPlane, Champions, NoLoading
    from .sampler import Sampler

    host = options.host or default_host()
    listener = listen(host, options.port)
    url_host = f"[{host}]" if ":" in host else host
    metrics = Metrics(model_name)
    follower = Follower(store, layout, model_name, metrics)
    follower.start()
    assert follower.current is not None
    # After a typo, the column that the user wants to exclude would be stored.
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
    _add_handlers(options, metrics)
    log.warning("%s is served at http://%s:%d", model_name, url_host, options.port)
    if sampler:
        sampler.start()
    try:
        server.start([model])
    finally:
        follower.stop()
        if sampler:
            sampler.stop()


def _load_kserve() -> None:
    """Import kserve, and hide this program's arguments, which kserve would parse.

    Raises:
        ConfigurationError: kserve is not installed.
    """
    arguments = sys.argv
    sys.argv = arguments[:1]
    for name in ("kserve", "kserve.trace", "uvicorn"):  # before kserve would add handlers
        logging.getLogger(name).addFilter(_shorten_client_errors)
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


def _shorten_client_errors(record: logging.LogRecord) -> bool:
    """Filter log records: shorten a client's error to one line, keep the server's tracebacks."""
    from kserve import errors

    client_errors = (errors.InvalidInput, errors.ModelNotFound, errors.ModelNotReady)
    if record.exc_info and isinstance(record.exc_info[1], (*client_errors, NotImplementedError)):
        record.msg, record.args = "refused: %s", (str(record.exc_info[1])[:500],)
        record.exc_info, record.levelno, record.levelname = None, logging.WARNING, "WARNING"
    return True


def _add_handlers(options: ServerOptions, metrics: Any) -> None:
    """Add this project's middlewares and error handlers to kserve's application."""
    from fastapi import Request
    from fastapi.exceptions import FastAPIDeprecationWarning, RequestValidationError
    from fastapi.responses import JSONResponse
    from kserve.model_server import app
    from starlette.exceptions import HTTPException

    from .limits import Limits

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
            if "bytes" not in item["loc"]  # kserve also tries to parse the body as bytes
        ]
        return JSONResponse(answer(RefusedRequest(*wrong)), HTTPStatus.BAD_REQUEST)

    async def other(request: Request, error: Any) -> JSONResponse:
        if error.status_code == HTTPStatus.BAD_REQUEST:  # the body is not UTF-8
            wrong = not_json(error.detail, REQUEST)
        else:
            wrong = Problem(
                f"{request.method} {request.url.path} cannot be answered",
                received=str(error.detail),
                expected="POST /v1/models/MODEL:predict or POST /v2/models/MODEL/infer",
                fix="correct the address or the method",
            )
        # The status 405 requires the header Allow.
        return JSONResponse(answer(RefusedRequest(wrong)), error.status_code, error.headers)

    # kserve's own code causes these warnings.
    warnings.filterwarnings("ignore", category=FastAPIDeprecationWarning)
    app.add_exception_handler(RefusedRequest, refused)
    app.add_exception_handler(DataError, failed)
    app.add_exception_handler(RequestValidationError, malformed)
    app.add_exception_handler(HTTPException, other)
    app.add_middleware(BodyType)
    app.add_middleware(Limits, most=int(options.max_request_mb * 1e6), metrics=metrics)


def _malformed(item: Mapping[str, Any]) -> Problem:
    """Return the problem for one of FastAPI's validation errors."""
    path = [str(part) for part in item["loc"] if part not in ("body", "Request")]
    if item["type"] == "json_invalid":
        return not_json(f"{item['ctx']['error']} at character {path[0]}", REQUEST)
    if not path:
        return not_json("an empty body" if item["type"] == "missing" else item["msg"], REQUEST)
    return Problem(
        f"the request does not follow the Open Inference Protocol: {item['msg']}",
        received=".".join(path),
        expected=REQUEST,
        fix="send each column as an input",
    )
