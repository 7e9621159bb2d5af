"""Copies a model's champions to other registries; ours is authoritative and never waits for them.

A mirror is enabled if the environment or the store's Secret names its server; for MLflow, the run's
`pod.all.env` may. Each time, it gets the model's newest twenty champion versions, so the next run
or `kfp-tfjob models sync` adds the versions that a mirror missed while it was down. A mirror that
is down, slow or wrong costs its time limit and a line in the log; it never fails a run. Called at
the end of publish and by the `models` commands.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypedDict

from kfp_tfjob.common.errors import StepError
from kfp_tfjob.common.escaping import host_of, line, without_secrets
from kfp_tfjob.storage.credentials import SecretVolume
from kfp_tfjob.storage.layout import MODEL, Layout
from kfp_tfjob.storage.secret_keys import MLFLOW_KEY
from kfp_tfjob.storage.store import Store

from . import tracking
from .champion_records import champions
from .history import reasons
from .mirrors import METRIC

log = logging.getLogger(__name__)

RUN_SECONDS = 20.0  # per mirror at publish's end, where the run waits
PERSON_SECONDS = 120.0  # per mirror in `models sync`, which a person started for this
_MAX_VERSIONS = 20  # enough for a rollback; each costs a mirror a few requests
_MAX_CHARACTERS = 500  # per value, because registries limit the length of their values


@dataclass(frozen=True)
class Mirror:
    """Another registry that can hold copies of the champions.

    Attributes:
        name: Its name in messages.
        module: Its module in `registry/mirrors/`.
        extra: The optional dependency that contains its client.
        server: The environment variable with its server's address.
        keys: Further variables that its client reads, from the environment or the Secret.
    """

    name: str
    module: str
    extra: str
    server: str
    keys: tuple[str, ...]


MIRRORS = (
    Mirror(
        "MLflow",
        "mlflow_registry",
        "mlflow",
        MLFLOW_KEY,
        ("MLFLOW_REGISTRY_URI", *tracking.CREDENTIALS),
    ),
    Mirror(
        "Kubeflow Model Registry",
        "kubeflow_registry",
        "model-registry",
        "MODEL_REGISTRY_URL",
        ("MODEL_REGISTRY_TOKEN",),
    ),
)


class MirrorVersion(TypedDict):
    """A version that a mirror should contain; JSON for the mirror's process.

    `fact_names` also contains the names of facts without a value.
    """

    version: int
    uri: str
    why: str
    facts: dict[str, str]
    fact_names: list[str]


class MirrorContent(TypedDict):
    """A mirror's expected content: the champion's version, and all versions, the oldest first."""

    model: str
    champion: int
    versions: list[MirrorVersion]


@dataclass(frozen=True)
class Outcome:
    """The outcome of one mirror's update.

    Attributes:
        mirror: The mirror's name.
        server: Its server's host name.
        model: The model.
        done: Whether the mirror is up to date now.
        message: The client's last line: what it changed, or why it failed.
    """

    mirror: str
    server: str
    model: str
    done: bool
    message: str


def sync(
    store: Store,
    layout: Layout,
    model_name: str,
    seconds: float = RUN_SECONDS,
    variables: Mapping[str, str] = MappingProxyType({}),
) -> list[Outcome]:
    """Update all configured mirrors; a mirror's failure is logged and returned, never raised.

    Args:
        store: The store.
        layout: Everything below output_uri.
        model_name: The model.
        seconds: The time limit of each mirror.
        variables: Variables of the run's replicas, which precede this process's own.

    Returns:
        One outcome per mirror; empty without a configured mirror or without a champion.
    """
    secret = SecretVolume.from_environment()
    environment = os.environ | dict(variables)
    servers = {
        mirror: environment.get(mirror.server) or secret.get(mirror.server) for mirror in MIRRORS
    }
    configured = {mirror: server for mirror, server in servers.items() if server}
    if not configured:
        return []
    outcomes: list[Outcome] = []
    champion = None
    while True:
        try:
            content = _mirror_content(store, layout, model_name)
        except Exception as error:  # a mirror never fails a run
            is_bug = not isinstance(error, StepError)
            log.warning(
                "the mirrors of %s cannot be updated: %s", model_name, error, exc_info=is_bug
            )
            return outcomes
        # Another run may publish meanwhile and update the mirrors first; its entries would then be
        # overwritten with older ones. So repeat until the champion stays the same.
        if not content or content["champion"] == champion:
            return outcomes
        champion, outcomes = content["champion"], []
        for mirror, server in configured.items():
            outcome = _sync(mirror, server, secret, content, seconds, environment)
            level = logging.INFO if outcome.done else logging.WARNING
            log.log(level, "%s at %s: %s", mirror.name, outcome.server, outcome.message)
            outcomes.append(outcome)


def _sync(
    mirror: Mirror,
    server: str,
    secret: SecretVolume,
    content: MirrorContent,
    seconds: float,
    environment: Mapping[str, str],
) -> Outcome:
    """Update one mirror in a process of its own, which ends at the time limit."""
    settings = {key: environment.get(key) or secret.get(key) for key in mirror.keys}
    variables = {mirror.server: server} | {key: value for key, value in settings.items() if value}
    host = host_of(server)

    def outcome(done: bool, message: str) -> Outcome:
        # A client may repeat its address, with the password in it.
        message = without_secrets(message.replace(server, host), variables.values())
        return Outcome(mirror.name, host, content["model"], done, line(message))

    command = [sys.executable, "-Pm", "kfp_tfjob.registry.mirrors", mirror.module]
    try:
        process = subprocess.run(
            command,
            input=json.dumps(content),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            env=_without_store(environment) | tracking.CLIENT_VARIABLES | variables,
        )
    except subprocess.TimeoutExpired:
        return outcome(False, f"not done within {seconds:.0f} s; the next run or sync continues")
    except OSError as error:
        return outcome(False, f"its client cannot be started: {error}")
    message = (process.stdout.strip().splitlines() or ["the client printed nothing"])[-1]
    if process.returncode == 3:  # an ImportError, see mirrors/__main__.py
        fix = f"install the extra {mirror.extra} in the step's image"
        return outcome(False, f"its client is not installed ({message}). Fix: {fix}")
    return outcome(process.returncode == 0, message)


def _without_store(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables without the store's, which a mirror's client never needs."""
    prefixes = ("AWS_", "STORAGE_")
    return {key: value for key, value in environment.items() if not key.startswith(prefixes)}


def _mirror_content(store: Store, layout: Layout, model_name: str) -> MirrorContent | None:
    """Return the newest versions that were the champion; None before the first promotion."""
    folder = layout.model(model_name)
    pruned = set(store.numbers(folder.tombstones))
    # A version has several records if it was rolled back to, so read more records than versions.
    records = list(champions(store, layout, model_name, 3 * _MAX_VERSIONS))
    if not records:
        return None
    versions: dict[int, MirrorVersion] = {}
    for record in records:  # newest first, so a version's newest record counts
        if record.version in versions or len(versions) == _MAX_VERSIONS:
            continue
        why = record.why or reasons(store, layout, model_name, record.version)
        facts = {
            "version": record.version,
            "champion": record.number,
            "serving": record.served_as,
            "run_id": record.run_id,
            "task_key": record.task_key,
            "action": record.action or "publish",
            "by": record.by,
            "verdict": record.verdict_uri,
            "dataset_digest": record.dataset_digest,
            "schema_digest": record.schema_digest,
            "exported_weights_sha256": record.exported_weights_sha256,
            "manifest_sha256": record.manifest_sha256,
            "pruned": "yes" if record.version in pruned else "",
        }
        facts |= {f"{METRIC}{name}": f"{value:.6g}" for name, value in record.metrics.items()}
        versions[record.version] = {
            "version": record.version,
            "uri": str(folder.version(record.version) / MODEL),
            "why": line(why)[:_MAX_CHARACTERS],
            "facts": {
                key: str(value)[:_MAX_CHARACTERS] for key, value in facts.items() if value != ""
            },
            "fact_names": list(facts),
        }
    return {
        "model": model_name,
        "champion": records[0].version,
        "versions": [versions[number] for number in sorted(versions)],
    }
