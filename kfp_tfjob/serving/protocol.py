"""The champion as a model of kserve: requests in V1 and V2 become rows, and predictions answers."""

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

from kfp_tfjob.serving import answers, tensors
from kfp_tfjob.serving.batcher import Batcher
from kfp_tfjob.serving.body_type import BINARY_REQUEST, JSON_LENGTH, REQUEST, ROWS, not_json
from kfp_tfjob.serving.follower import Follower
from kfp_tfjob.serving.loaded_model import LoadedModel
from kfp_tfjob.serving.metrics import Metrics
from kfp_tfjob.serving.refusal import RefusedRequest
from kfp_tfjob.serving.request_columns import Rows
from kfp_tfjob.storage.errors import DataError, Problem

VERSION_HEADER = "x-model-version"
Parameters = dict[str, Any] | None  # nothing here reads them
# Is told of every answered request: the model, its rows and its predictions.
Watcher = Callable[[LoadedModel, Rows, np.ndarray], None]


class _Input(RequestInput):
    shape: Annotated[list[int], FailFast()]
    parameters: Parameters = None


class _Output(RequestOutput):
    parameters: Parameters = None


class Request(InferenceRequest):
    """A V2 request whose parsing stops at the first mistake: pydantic would collect gigabytes."""

    parameters: Parameters = None
    inputs: Annotated[list[_Input], FailFast()]
    outputs: Annotated[list[_Output] | None, FailFast()] = None


V2Endpoints.infer.__annotations__["request_body"] = Request | bytes  # what FastAPI reads it into


class ChampionModel(Model):
    """The model that kserve serves under its name.

    Args:
        name: The model's name.
        follower: Holds the champion that answers.
        metrics: Counts the rows.
        threads: Requests that are computed at once.
        watcher: Gets every answered request; None for no watcher.
        batches: How long a request may wait for others, in seconds, and how many rows do not wait
            any longer; None to predict each request alone.
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
        self._batcher = Batcher(_predicted, self._pool, *batches) if batches else None

    @property
    def ready(self) -> bool:
        """Whether there is a champion that answers."""
        return self._follower.current is not None

    @ready.setter
    def ready(self, value: bool) -> None:
        """Ignore what kserve believes: only the follower knows."""

    @property
    def loaded(self) -> LoadedModel:
        """The champion that answers."""
        assert self._follower.current is not None
        return self._follower.current

    def validate(self, payload: Any) -> Any:
        """Leave the checks to `predict`, which says what is wrong."""
        return payload

    async def predict(
        self,
        payload: Any,
        headers: dict[str, str] | None = None,
        response_headers: dict[str, str] | None = None,
    ) -> Any:
        """Answer one request.

        Raises:
            RefusedRequest: It does not have the model's columns.
        """
        loaded = self.loaded  # of the whole request, whatever takes over meanwhile
        loop = asyncio.get_running_loop()
        if self._batcher:
            rows = await loop.run_in_executor(self._pool, self._rows, loaded, payload)
            values = await self._batcher.predict(loaded, rows)
            written = (self._pool, self._written, loaded, payload, rows, values)
            answer = await loop.run_in_executor(*written)
        else:
            answer = await loop.run_in_executor(self._pool, self._answer, loaded, payload)
        if response_headers is not None:
            response_headers[VERSION_HEADER] = str(loaded.champion.version)
        return answer

    def get_input_types(self) -> list[dict[str, Any]]:
        """Return the inputs for the metadata of V2."""
        return tensors.inputs_of(self.loaded.columns)

    def get_output_types(self) -> list[dict[str, Any]]:
        """Return the outputs for the metadata of V2."""
        return answers.outputs_of(self.loaded.columns.classes)

    def _answer(self, loaded: LoadedModel, payload: Any) -> Any:
        """Return the answer to a request; runs in a thread of the pool."""
        rows = self._rows(loaded, payload)
        return self._written(loaded, payload, rows, _predicted(loaded, rows))

    def _rows(self, loaded: LoadedModel, payload: Any) -> Rows:
        """Return a request's rows."""
        if not isinstance(payload, InferRequest):
            return loaded.columns.of_rows(_instances(payload))
        self._require_version(loaded, payload)
        self._outputs(loaded, payload)
        return tensors.read(loaded.columns, payload.inputs)

    def _written(self, loaded: LoadedModel, payload: Any, rows: Rows, values: np.ndarray) -> Any:
        """Return the answer with the predictions for a request's rows."""
        classes = loaded.columns.classes
        self._metrics.predicted(rows.count)
        if self._watcher:
            self._watcher(loaded, rows, values)
        if not isinstance(payload, InferRequest):
            return {"predictions": answers.predictions(classes, values)}
        wanted = self._outputs(loaded, payload)
        return InferResponse(
            response_id=payload.id or uuid.uuid4().hex,
            model_name=self.name,
            model_version=str(loaded.champion.version),
            infer_outputs=[
                InferOutput(**it) for it in answers.tensors(classes, values) if it["name"] in wanted
            ],
        )

    def _require_version(self, loaded: LoadedModel, request: InferRequest) -> None:
        """Reject a request for a version that is not served."""
        there, asked = str(loaded.champion.version), request.model_version
        if asked and asked != there:
            raise RefusedRequest(
                Problem(
                    f"version {asked} of {self.name} is not served here",
                    received=f"model_version {asked}",
                    expected=f"{there}, the champion, or none",
                    fix="omit model_version",
                    path="model_version",
                ),
                status=HTTPStatus.NOT_FOUND,
            )

    def _outputs(self, loaded: LoadedModel, request: InferRequest) -> set[str]:
        """Return the outputs that a request in V2 asks for."""
        there = {it["name"] for it in answers.outputs_of(loaded.columns.classes)}
        asked = {it.name for it in request.request_outputs or ()}
        if not asked <= there:
            raise RefusedRequest(
                Problem(
                    "the model has no such output",
                    received=", ".join(sorted(asked - there)),
                    expected=", ".join(sorted(there)),
                    fix="request one of these, or omit `outputs`",
                    path="outputs",
                )
            )
        return asked or there


def _instances(payload: Any) -> Any:
    """Return the rows of a request in V1; None without any."""
    return payload.get("instances") if isinstance(payload, dict) else None


def _predicted(loaded: LoadedModel, rows: Rows) -> np.ndarray:
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
    """The models of the server: one, which requests can neither load nor unload."""

    def unload(self, name: str) -> None:
        """Keep the model: kserve unloads it at SIGTERM, before the last requests are answered."""


class NoLoading(ModelRepositoryExtension):
    """Refuses to load and unload models by request: the server follows the champion."""

    async def load(self, model_name: str) -> None:
        """Reject."""
        raise self._refusal("load", model_name)

    async def unload(self, model_name: str) -> None:
        """Reject."""
        raise self._refusal("unload", model_name)

    def _refusal(self, what: str, model_name: str) -> RefusedRequest:
        return RefusedRequest(
            Problem(
                f"this server does not {what} models on request",
                received=f"{what} {model_name}",
                expected="the champion, which the server loads automatically",
                fix="publish another model, or use `kfp-tfjob models rollback`",
            ),
            status=HTTPStatus.FORBIDDEN,
        )


class ChampionPlane(DataPlane):
    """Answers about the server and the model."""

    async def ready(self) -> bool:
        """Return whether the model answers."""
        return all(model.ready for model in self.model_registry.get_models().values())

    async def model_metadata(self, model_name: str) -> dict[str, Any]:
        """Return the metadata of V2, with the version that answers."""
        found = await super().model_metadata(model_name)
        model = self.get_model_from_registry(model_name)
        assert isinstance(model, ChampionModel)
        version = str(model.loaded.champion.version)
        return found | {"versions": [version], "platform": "tensorflow_savedmodel"}

    def decode(self, *arguments: Any, **more: Any) -> Any:
        """Read a request.

        Raises:
            RefusedRequest: It cannot be read.
        """
        try:
            return super().decode(*arguments, **more)
        except InvalidInput as error:
            raise RefusedRequest(not_json(str(error), ROWS)) from error

    def decode_inference_request(self, body: Any, headers: dict[str, str], model_name: str) -> Any:
        """Read a request in V2; kserve's own errors for bytes that are no tensors say little.

        Raises:
            RefusedRequest: It cannot be read.
        """
        is_binary = isinstance(body, bytes)
        length = headers.get(JSON_LENGTH, "")
        if is_binary and not (re.fullmatch("[0-9]{1,12}", length) and 0 < int(length) <= len(body)):
            raise RefusedRequest(
                Problem(
                    "the header of a binary request is not the length of its JSON",
                    received=f"{JSON_LENGTH}: {length}",
                    expected=f"a number from 1 to {len(body):,}, the body's length in bytes",
                    fix="send the length of the JSON before the tensors, or omit the header",
                    path=JSON_LENGTH,
                )
            )
        try:
            return super().decode_inference_request(body, headers, model_name)
        except Exception as error:
            raise RefusedRequest(
                Problem(
                    "the request does not follow the Open Inference Protocol",
                    received=f"{type(error).__name__}: {error!s:.200}",
                    expected=BINARY_REQUEST if is_binary else REQUEST,
                    fix="send each column as an input, images as base64 in JSON",
                )
            ) from error
