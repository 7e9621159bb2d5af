"""A fake of the Kubeflow Model Registry: its server is in no package registry.

    python fake_model_registry.py PORT VERSION

It speaks one VERSION of the API, v1 or v1alpha3, and checks each request and each answer with the
models of the API that the client brings. It knows what the mirror and its test need, and answers
anything else with 404.
"""

import json
import sys
from http.server import ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import mr_openapi as api

from tests import http_server

_KINDS = {
    "registered_models": (api.RegisteredModelCreate, api.RegisteredModelUpdate),
    "model_versions": (api.ModelVersionCreate, api.ModelVersionUpdate),
}
_STORED = {"registered_models": api.RegisteredModel, "model_versions": api.ModelVersion}


class Handler(http_server.Handler):
    """Answers one request; the state is a list of objects for each kind."""

    state: dict[str, list[dict]] = {"registered_models": [], "model_versions": [], "artifacts": []}
    root = ""

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        parts = self._parts()
        if len(parts) == 1 and parts[0] in self.state:
            return self._page(self.state[parts[0]])
        if len(parts) == 3 and parts[2] == "versions":
            own = [it for it in self.state["model_versions"] if it["registeredModelId"] == parts[1]]
            return self._page(own)
        if len(parts) == 3 and parts[2] == "artifacts":
            return self._page([it for it in self.state["artifacts"] if it["of"] == parts[1]])
        if parts == ["model_artifact"]:
            for it in self.state["artifacts"]:
                if (it["name"], it["of"]) == (query.get("name"), query.get("parentResourceId")):
                    return self.answer(it)
        kind = f"{parts[0]}s"
        if kind in _STORED and len(parts) == 1:
            for it in self.state[kind]:
                parent = query.get("parentResourceId", it.get("registeredModelId"))
                if it["name"] == query.get("name") and it.get("registeredModelId") == parent:
                    return self.answer(it)
        return self._not_found()

    def do_POST(self) -> None:
        parts = self._parts()
        body = json.loads(self.body())
        if len(parts) == 3 and parts[2] == "artifacts":
            api.Artifact.from_dict(body)
            return self._create("artifacts", body | {"of": parts[1]})
        if parts[0] not in _KINDS:
            return self._not_found()
        _KINDS[parts[0]][0].model_validate(body)
        same = [
            it
            for it in self.state[parts[0]]
            if it["name"] == body["name"]
            and it.get("registeredModelId") == body.get("registeredModelId")
        ]
        if same:
            return self.answer({"code": "409", "message": "already exists"}, 409)
        return self._create(parts[0], {"state": "LIVE"} | body)

    def do_PATCH(self) -> None:
        kind, number = self._parts()
        body = json.loads(self.body())
        _KINDS[kind][1].model_validate(body)
        (found,) = (it for it in self.state[kind] if it["id"] == number)
        found.update({key: value for key, value in body.items() if value is not None})
        self.answer(found)

    def _parts(self) -> list[str]:
        path = urlsplit(self.path).path
        return path.removeprefix(self.root).split("/") if path.startswith(self.root) else [""]

    def _create(self, kind: str, body: dict) -> None:
        body["id"] = str(sum(map(len, self.state.values())) + 1)
        if kind in _STORED:
            _STORED[kind].model_validate(body)
        self.state[kind].append(body)
        self.answer(body, 201)

    def _page(self, items: list[dict]) -> None:
        page = {"items": items, "nextPageToken": "", "pageSize": 100, "size": len(items)}
        self.answer(page)

    def _not_found(self) -> None:
        self.answer({"code": "404", "message": "not found"}, 404)


if __name__ == "__main__":
    Handler.root = f"/api/model_registry/{sys.argv[2]}/"
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
