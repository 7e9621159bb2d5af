"""MLflow's real server on SQLite, as a process."""

import json
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

from tests.cluster.processes import Process, answers, end_marked
from tests.environments import for_mirrors
from tests.ports import free_port

SECONDS = 120.0  # only what hangs reaches it


class Server:
    """The server; it can be stopped and started on the same data."""

    def __init__(self, folder: Path) -> None:
        self._folder, port = folder, free_port()
        self.uri = f"http://127.0.0.1:{port}"
        data = f"sqlite:///{folder}/mlflow.db"
        command = [str(for_mirrors()), "-m", "mlflow", "server", "--backend-store-uri", data]
        command += ["--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
        command += ["--artifacts-destination", str(folder / "artifacts")]
        fewer = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}  # by ten processes
        self._process = Process("mlflow", command, folder, folder, fewer)

    def start(self) -> None:
        self._process.start()
        self._process.wait_until(lambda: answers(f"{self.uri}/health"), 300)

    def stop(self) -> None:
        end_marked(self._folder)  # with its workers

    def get(self, path: str, **query: str) -> dict[str, Any]:
        """Return the answer of MLflow's REST API to a GET request."""
        url = f"{self.uri}/api/2.0/mlflow/{path}?{urllib.parse.urlencode(query)}"
        return json.load(urllib.request.urlopen(url, timeout=SECONDS))

    def post(self, path: str, **body: Any) -> dict[str, Any]:
        """Return the answer of MLflow's REST API to a POST request."""
        request = urllib.request.Request(
            f"{self.uri}/api/2.0/mlflow/{path}",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        return json.load(urllib.request.urlopen(request, timeout=SECONDS))

    def runs(self, run_id: str) -> list[dict[str, Any]]:
        """Return the MLflow runs of a run."""
        search = f"tags.`kfp_tfjob.run_id` = '{run_id}'"
        return self.post("runs/search", experiment_ids=["0"], filter=search).get("runs", [])

    def steps(self, mlflow_id: str, metric: str) -> list[int]:
        """Return the steps of a metric's values, in order."""
        found = self.get("metrics/get-history", run_id=mlflow_id, metric_key=metric)
        return sorted(int(item.get("step", 0)) for item in found.get("metrics", []))
