"""Names that all processes share which write to MLflow: settings, and the tags of its runs.

The chief, publish and `models sync` run on different machines and cannot hand each other the id of
an MLflow run. So each MLflow run carries the id of its run here as a tag, and is found by it. The
client is imported inside functions, because only the processes that use MLflow have it. Called by
the launcher, the trainer's process for MLflow, publish and the mirror.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kfp_tfjob.storage.secret_keys import MLFLOW_KEY

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

CREDENTIALS = (
    "MLFLOW_TRACKING_USERNAME",
    "MLFLOW_TRACKING_PASSWORD",
    "MLFLOW_TRACKING_TOKEN",
)
EXPERIMENT_ID, EXPERIMENT_NAME = "MLFLOW_EXPERIMENT_ID", "MLFLOW_EXPERIMENT_NAME"
RUN_ID = "MLFLOW_RUN_ID"
# Kubeflow Pipelines' MLflow plugin sets these variables in a task's container, and credentials.
PLUGIN_VARIABLES = (RUN_ID, MLFLOW_KEY, EXPERIMENT_ID, "MLFLOW_WORKSPACE")
# The client would retry for minutes by itself; its caller's next attempt is the retry. It would
# also report its use to MLflow's developers, and print a run's address, even with a password in it.
CLIENT_VARIABLES = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "5",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}

TAG_PREFIX = "kfp_tfjob."
RUN_TAG, TASK_TAG = f"{TAG_PREFIX}run_id", f"{TAG_PREFIX}task_key"
MODEL_TAG, VERSION_TAG = f"{TAG_PREFIX}model", f"{TAG_PREFIX}version"
CHAMPION_TAG = f"{TAG_PREFIX}champion"  # true on the run that trained the champion
_REFUSED = re.compile(r"[^\w.\- :/]")  # characters that MLflow rejects in a key
_LONGEST_KEY = 250  # characters; MLflow rejects longer ones
_MOST_EXPERIMENTS = 1000  # of one search, as MLflow's servers return by default


def key(name: str) -> str:
    """Return a name as the key of a metric, parameter or tag.

    MLflow accepts neither `@` nor `%`, and requires a normalized path. A class's name may contain
    any character and is part of its metrics' names.
    """
    allowed = _REFUSED.sub("_", name)[:_LONGEST_KEY]
    return "/".join("_" if part in ("", ".", "..") else part for part in allowed.split("/"))


def pod_variables(pod: Mapping[str, Any]) -> dict[str, str]:
    """Return MLflow's variables in `pod.all.env`, except those that refer to a Secret.

    Args:
        pod: The run parameter, before it is checked.
    """
    shared = pod.get("all")
    environment = shared.get("env") if isinstance(shared, Mapping) else None
    if not isinstance(environment, Mapping):
        return {}
    return {
        name: value
        for name, value in environment.items()
        if name.startswith("MLFLOW_") and isinstance(value, str) and value
    }


def find_run(
    client: MlflowClient, experiments: Sequence[str], run_id: str, task_key: str = ""
) -> Run | None:
    """Return the MLflow run of a training; the oldest, if two chiefs have created one at once.

    Args:
        client: A client of the server.
        experiments: The ids of the experiments that may contain it.
        run_id: The run's id here.
        task_key: The task_key of its launch_tfjob.
    """
    # MLflow cannot search for runs that lack a tag, so the key is compared here.
    for run in _tagged_runs(client, experiments, {RUN_TAG: run_id}):
        if run.data.tags.get(TASK_TAG, "") == task_key:
            return run
    return None


def all_experiments(client: MlflowClient) -> list[str]:
    """Return the ids of a server's experiments."""
    experiments = client.search_experiments(max_results=_MOST_EXPERIMENTS)
    return [experiment.experiment_id for experiment in experiments]


def tag_champion(
    client: MlflowClient,
    experiments: Sequence[str],
    model_name: str,
    version: str,
    champion: Run | None,
) -> None:
    """Mark the run that trained the champion, and no other run of that model.

    Args:
        client: A client of the server.
        experiments: The ids of the experiments that may contain runs of the model.
        model_name: The model.
        version: The champion's version.
        champion: The champion's run; None if MLflow does not have it.
    """
    champion_id = champion.info.run_id if champion else ""
    for run in _tagged_runs(client, experiments, {MODEL_TAG: model_name, CHAMPION_TAG: "true"}):
        if run.info.run_id != champion_id:
            client.set_tag(run.info.run_id, CHAMPION_TAG, "false")
    if champion:
        for name, value in (
            (MODEL_TAG, model_name),
            (VERSION_TAG, version),
            (CHAMPION_TAG, "true"),
        ):
            if champion.data.tags.get(name) != value:
                client.set_tag(champion_id, name, value)


def _tagged_runs(
    client: MlflowClient, experiments: Sequence[str], tags: Mapping[str, str]
) -> list[Run]:
    """Return the runs with these tags, the oldest first."""
    if not experiments or any("'" in value for value in tags.values()):
        return []  # no id or model name of ours contains a quote
    return list(
        client.search_runs(
            list(experiments),
            " and ".join(f"tags.`{name}` = '{value}'" for name, value in tags.items()),
            max_results=100,
            order_by=["attributes.start_time ASC"],
        )
    )
