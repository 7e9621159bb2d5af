"""The champion as a kserve model: requests in V1 and V2 become rows, predictions become responses.

kserve parses the protocols and calls `predict`; everything after that runs in a pool of threads, so
that the event loop can answer health checks. Built by server.py.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from typing import Annotated, Any

import numpy as np
from kserve import InferOutput, InferRequest, InferResponse, Model, ModelRepository
from kserve.errors import InvalidInput
from kserve.protocol.dataplane import DataPlane
from kserve.protocol.model_repository_extension import ModelRepositoryExtension
from kserve.protocol.rest.v2_datamodels import InferenceRequest, RequestInput, RequestOutput
from kserve.protocol.rest.v2_endpoints import V2Endpoints
from pydantic import FailFast

from kfp_tfjob.common.errors import DataError, Problem
from kfp_tfjob.common.escaping import is_utf8

from . import answers, tensors
from .batcher import Batcher
from .body_type import BINARY_REQUEST, JSON_LENGTH, REQUEST, ROWS, not_json
from .follower import Follower
from .loaded_model import LoadedModel
from .metrics import Metrics
from .refusal import RefusedRequest
from .request_columns import Rows

VERSION_HEADER = "x-model-version"
Parameters = dict[str, Any] | None  # accepted and ignored
# Called for every answered request with the model, the rows and their predictions.
Watcher = Callable[[LoadedModel, Rows, np.ndarray], None]


class _Input(RequestInput):
    shape: Annotated[list[int], FailFast()]
    parameters: Parameters = None


class _Output(RequestOutput):
    parameters: Parameters = None


class Request(InferenceRequest):
    """A V2 request whose parsing stops at the first error; pydantic could collect gigabytes."""

    parameters: Parameters = None
    inputs: Annotated[list[_Input], FailFast()]
    outputs: Annotated[list[_Output] | None, FailFast()] = None


# FastAPI parses a body into the annotated type.
V2Endpoints.infer.__annotations__["request_body"] = Request | bytes


class ChampionModel(Model):
    """The model that kserve serves under its name.

    Args:
        name: The model's name.
        follower: Provides the current champion.
        metrics: Counts the rows.
        threads: The number of requests that are computed in parallel.
        watcher: Called for every answered request; None without a watcher.
        batches: The longest time in seconds that a request waits for other requests, and the number
            of rows at which a batch starts at once; None to predict each request alone.
    """

    def __init__(
        self,
        name: str,
        follower: Follower,
        metrics: Metrics,
        threads: int,
        watcher: Watcher | None = None,
        batches: tuple[float, int] | None = None,
    ) -> None:
        self._follower = follower
        super().__init__(name, return_response_headers=True)
        self._metrics, self._watcher = metrics, watcher
        # The event loop stays free for health checks while TensorFlow computes.
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="predict")
        self._batcher = Batcher(_predict_rows, self._pool, *batches) if batches else None

    @property
    def ready(self) -> bool:
        """Whether a champion is loaded."""
        return self._follower.current is not None

    @ready.setter
    def ready(self, value: bool) -> None:
        """Ignored; readiness comes from the follower."""

    @property
    def loaded(self) -> LoadedModel:
        """The champion in use."""
        assert self._follower.current is not None
        return self._follower.current

    def validate(self, payload: Any) -> Any:
        """Return the payload unchecked; `predict` checks it with better messages."""
        return payload

    async def predict(
        self,
        payload: Any,
        headers: dict[str, str] | None = None,
        response_headers: dict[str, str] | None = None,
    ) -> Any:
        """Answer one request.

        Raises:
            RefusedRequest: The request does not match the model's columns.
        """
        loaded = self.loaded  # read once, so that one champion answers the whole request
        loop = asyncio.get_running_loop()
        if self._batcher:
            rows = await loop.run_in_executor(self._pool, self._rows, loaded, payload)
            values = await self._batcher.predict(loaded, rows)
            build_call = (self._pool, self._build_answer, loaded, payload, rows, values)
            answer = await loop.run_in_executor(*build_call)
        else:
            answer = await loop.run_in_executor(self._pool, self._answer, loaded, payload)
        if response_headers is not None:
            response_headers[VERSION_HEADER] = str(loaded.champion.version)
        return answer

    def get_input_types(self) -> list[dict[str, Any]]:
        """Return the inputs for the V2 metadata."""
        return tensors.inputs_of(self.loaded.columns)

    def get_output_types(self) -> list[dict[str, Any]]:
        """Return the outputs for the V2 metadata."""
        return answers.outputs_of(self.loaded.columns.classes)

    def _answer(self, loaded: LoadedModel, payload: Any) -> Any:
        """Return the answer to a request; runs in a thread of the pool."""
        rows = self._rows(loaded, payload)
        return self._build_answer(loaded, payload, rows, _predict_rows(loaded, rows))

    def _rows(self, loaded: LoadedModel, payload: Any) -> Rows:
        """Return a request's rows."""
        if not isinstance(payload, InferRequest):
            return loaded.columns.of_rows(_instances(payload))
        self._require_version(loaded, payload)
        self._requested_outputs(loaded, payload)
        return tensors.read(loaded.columns, payload.inputs)

    def _build_answer(
        self, loaded: LoadedModel, payload: Any, rows: Rows, values: np.ndarray
    ) -> Any:
        """Return the response with the predictions for a request's rows."""
        classes = loaded.columns.classes
        self._metrics.predicted(rows.count)
        if self._watcher:
            self._watcher(loaded, rows, values)
        if not isinstance(payload, InferRequest):
            return {"predictions": answers.predictions(classes, values)}
        requested = self._requested_outputs(loaded, payload)
        return InferResponse(
            response_id=payload.id or uuid.uuid4().hex,
            model_name=self.name,
            model_version=str(loaded.champion.version),
            infer_outputs=[
                InferOutput(**output)
                for output in answers.tensors(classes, values)
                if output["name"] in requested
            ],
        )

    def _require_version(self, loaded: LoadedModel, request: InferRequest) -> None:
        """Reject a request for a version that is not served."""
        served, requested = str(loaded.champion.version), request.model_version
        if requested and requested != served:
            raise RefusedRequest(
                Problem(
                    f"version {requested} of {self.name} is not served here",
                    received=f"model_version {requested}",
                    expected=f"{served}, the champion, or none",
                    fix="omit model_version",
                    path="model_version",
                ),
                status=HTTPStatus.NOT_FOUND,
            )

    def _requested_outputs(self, loaded: LoadedModel, request: InferRequest) -> set[str]:
        """Return the names of the outputs that a V2 request asks for; by default, all."""
        available = {output["name"] for output in answers.outputs_of(loaded.columns.classes)}
        requested = {output.name for output in request.request_outputs or ()}
        if not requested <= available:
            raise RefusedRequest(
                Problem(
                    "the model has no such output",
                    received=", ".join(sorted(requested - available)),
                    expected=", ".join(sorted(available)),
                    fix="request one of these, or omit `outputs`",
                    path="outputs",
                )
            )
        return requested or available


def _instances(payload: Any) -> Any:
    """Return the list `instances` of a V1 request; None if it is missing."""
    return payload.get("instances") if isinstance(payload, dict) else None


def _predict_rows(loaded: LoadedModel, rows: Rows) -> np.ndarray:
    try:
        return loaded.predict(rows)
    except DataError as error:
        checked = (item for item in loaded.columns.types.items() if item[1].whole)
        for name, column in checked:
            problem = error.problems[0]
            raise RefusedRequest(
                Problem(
                    f"the {column.nouns[1]} of the request cannot be decoded",
                    received=problem.received if isinstance(problem, Problem) else problem,
                    expected=column.whole,
                    fix=f"find the damaged one by sending {column.nouns[0]} in each request",
                    path=name,
                )
            ) from error
        raise


class Champions(ModelRepository):
    """The server's models: one, which requests can neither load nor unload."""

    def unload(self, name: str) -> None:
        """Do nothing; kserve unloads models at SIGTERM, before the last requests are answered."""


class NoLoading(ModelRepositoryExtension):
    """Refuses to load and unload models by request: the server follows the champion."""

    async def load(self, model_name: str) -> None:
        """Reject the request."""
        raise self._refuse("load", model_name)

    async def unload(self, model_name: str) -> None:
        """Reject the request."""
        raise self._refuse("unload", model_name)

    def _refuse(self, action: str, model_name: str) -> RefusedRequest:
        return RefusedRequest(
            Problem(
                f"this server does not {action} models on request",
                received=f"{action} {model_name}",
                expected="the champion, which the server loads automatically",
                fix="publish another model, or use `kfp-tfjob models rollback`",
            ),
            status=HTTPStatus.FORBIDDEN,
        )


class ChampionPlane(DataPlane):
    """Answers requests for readiness and metadata, and parses prediction requests."""

    async def ready(self) -> bool:
        """Return whether every model is ready."""
        return all(model.ready for model in self.model_registry.get_models().values())

    async def model_metadata(self, model_name: str) -> dict[str, Any]:
        """Return the V2 metadata, with the version in use."""
        metadata = await super().model_metadata(model_name)
        model = self.get_model_from_registry(model_name)
        assert isinstance(model, ChampionModel)
        version = str(model.loaded.champion.version)
        return metadata | {"versions": [version], "platform": "tensorflow_savedmodel"}

    def decode(self, *arguments: Any, **options: Any) -> Any:
        """Parse a V1 request.

        Raises:
            RefusedRequest: The body is not a JSON object.
        """
        try:
            return super().decode(*arguments, **options)
        except InvalidInput as error:
            raise RefusedRequest(not_json(str(error), ROWS)) from error

    def decode_inference_request(self, body: Any, headers: dict[str, str], model_name: str) -> Any:
        """Parse a V2 request, with better messages than kserve's for invalid tensors.

        Raises:
            RefusedRequest: The request does not follow the Open Inference Protocol.
        """
        is_binary = isinstance(body, bytes)
        length = headers.get(JSON_LENGTH, "")
        if is_binary and not (re.fullmatch("[0-9]{1,12}", length) and 0 < int(length) <= len(body)):
            raise RefusedRequest(
                Problem(
                    "the header of a binary request is not the length of its JSON",
                    received=f"{JSON_LENGTH}: {length}",
                    expected=f"the JSON's length in bytes, 1 to {len(body):,} (the whole body)",
                    fix="send the length of the JSON that precedes the tensors; without tensors,"
                    " omit the header",
                    path=JSON_LENGTH,
                )
            )
        try:
            request = super().decode_inference_request(body, headers, model_name)
        except Exception as error:
            raise RefusedRequest(
                Problem(
                    "the request does not follow the Open Inference Protocol",
                    received=f"{type(error).__name__}: {error!s:.200}",
                    expected=BINARY_REQUEST if is_binary else REQUEST,
                    fix="send FP32 in JSON, or FP16 as a binary tensor"
                    if "FP16 data" in str(error)  # which kserve does not accept in JSON
                    else "send each column as an input, images as base64 in JSON",
                )
            ) from error
        if not is_utf8(request.id or ""):  # the response has the same id
            raise RefusedRequest(
                Problem(
                    "the request's id contains half of a surrogate pair",
                    received=f"id: {request.id!r:.80}",
                    expected="a string that can be written in UTF-8",
                    fix="send another id, or omit `id`",
                    path="id",
                )
            )
        return request
