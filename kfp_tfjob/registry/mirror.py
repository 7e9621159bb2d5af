"""Keeps other registries up to date; ours is authoritative and never waits for them.

A mirror is on if the environment or the Secret of the store names its server. It gets the champions
of a model, the newest twenty versions, each time: so the next run, or `kfp-tfjob models sync`,
adds what a mirror missed while it was down. A mirror that is down, slow or wrong costs its time
limit and a line in the log.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import TypedDict
from urllib.parse import urlsplit

from kfp_tfjob.registry.champion_records import champions
from kfp_tfjob.registry.history import reasons
from kfp_tfjob.storage.credentials import SecretVolume
from kfp_tfjob.storage.errors import StepError
from kfp_tfjob.storage.escaping import line, without_secrets
from kfp_tfjob.storage.layout import MODEL, Layout
from kfp_tfjob.storage.store import Store

log = logging.getLogger(__name__)

RUN_SECONDS = 20.0  # of each mirror at the end of publish
PERSON_SECONDS = 120.0  # of `models sync`
_MOST = 20  # versions
_LONGEST = 500  # characters of a reason: registries limit their values
# The clients retry for minutes by themselves; the next sync is the retry.
_QUICK = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0", "MLFLOW_HTTP_REQUEST_TIMEOUT": "5"}


@dataclass(frozen=True)
class Mirror:
    """A registry of others.

    Attributes:
        name: For people.
        module: In `registry/mirrors/`.
        extra: What has to be installed.
        server: The variable with its server's address.
        keys: Further variables that its client reads, from the Secret too.
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
        "MLFLOW_TRACKING_URI",
        (
            "MLFLOW_REGISTRY_URI",
            "MLFLOW_TRACKING_USERNAME",
            "MLFLOW_TRACKING_PASSWORD",
            "MLFLOW_TRACKING_TOKEN",
        ),
    ),
    Mirror(
        "Kubeflow Model Registry",
        "kubeflow_registry",
        "model-registry",
        "MODEL_REGISTRY_URL",
        ("MODEL_REGISTRY_TOKEN",),
    ),
)


class WantedVersion(TypedDict):
    """A version that a mirror shall have."""

    version: int
    uri: str
    why: str
    facts: dict[str, str]


class Wanted(TypedDict):
    """What a mirror should have: the number of the champion, and the versions, the oldest first."""

    model: str
    champion: int
    versions: list[WantedVersion]


@dataclass(frozen=True)
class Outcome:
    """The outcome of a mirror.

    Attributes:
        mirror: Its name.
        server: The host of its server.
        model: The model.
        done: Whether it is up to date now.
        said: What was done, or why it was not.
    """

    mirror: str
    server: str
    model: str
    done: bool
    said: str


def sync(
    store: Store, layout: Layout, model_name: str, seconds: float = RUN_SECONDS
) -> list[Outcome]:
    """Bring all mirrors that are configured up to date; never raises for one of them.

    Args:
        store: The store.
        layout: Everything below output_uri.
        model_name: The model.
        seconds: The time limit of each mirror.

    Returns:
        The outcome of each; empty if none is configured, or the model has no champion.
    """
    secret = SecretVolume.from_environment()
    found = {it: os.environ.get(it.server) or secret.get(it.server) for it in MIRRORS}
    configured = {it: server for it, server in found.items() if server}
    if not configured:
        return []
    outcomes: list[Outcome] = []
    champion = None
    while True:
        try:
            wanted = _wanted(store, layout, model_name)
        except Exception as error:  # a mirror fails no run
            is_bug = not isinstance(error, StepError)
            log.warning(
                "the mirrors of %s cannot be updated: %s", model_name, error, exc_info=is_bug
            )
            return outcomes
        # Another run may have published meanwhile, and told the mirrors before this one did.
        if not wanted or wanted["champion"] == champion:
            return outcomes
        champion, outcomes = wanted["champion"], []
        for it, server in configured.items():
            outcome = _sync(it, server, secret, wanted, seconds)
            level = logging.INFO if outcome.done else logging.WARNING
            log.log(level, "%s at %s: %s", it.name, outcome.server, outcome.said)
            outcomes.append(outcome)


def _sync(
    mirror: Mirror, server: str, secret: SecretVolume, wanted: Wanted, seconds: float
) -> Outcome:
    given = {key: os.environ.get(key) or secret.get(key) for key in mirror.keys}
    given = {mirror.server: server} | {key: value for key, value in given.items() if value}
    host = _host(server)

    def outcome(done: bool, said: str) -> Outcome:
        # A client may repeat its address, with the password in it.
        said = without_secrets(said.replace(server, host), given.values())
        return Outcome(mirror.name, host, wanted["model"], done, line(said))

    command = [sys.executable, "-Pm", "kfp_tfjob.registry.mirrors", mirror.module]
    try:
        ended = subprocess.run(
            command,
            input=json.dumps(wanted),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            env=_without_keys() | _QUICK | given,
        )
    except subprocess.TimeoutExpired:
        return outcome(False, f"not done within {seconds:.0f} s; the next run or sync continues")
    except OSError as error:
        return outcome(False, f"its client cannot be started: {error}")
    said = (ended.stdout.strip().splitlines() or ["the client printed nothing"])[-1]
    if ended.returncode == 3:
        fix = f"install the extra {mirror.extra} in the step's image"
        return outcome(False, f"its client is not installed ({said}). Fix: {fix}")
    return outcome(ended.returncode == 0, said)


def _without_keys() -> dict[str, str]:
    """Return the environment without what leads to the store: a client of others needs none."""
    own = ("AWS_", "STORAGE_")
    return {key: value for key, value in os.environ.items() if not key.startswith(own)}


def _wanted(store: Store, layout: Layout, model_name: str) -> Wanted | None:
    """Return the newest versions that were the champion, as the mirrors get them."""
    place = layout.model(model_name)
    pruned = set(store.numbers(place.tombstones))
    records = list(champions(store, layout, model_name, 3 * _MOST))
    if not records:
        return None
    versions: dict[int, WantedVersion] = {}
    for it in records:  # the newest first: that is the one of a version that counts
        if it.version in versions or len(versions) == _MOST:
            continue
        why = it.why or reasons(store, layout, model_name, it.version)
        facts = {
            "version": it.version,
            "champion": it.number,
            "serving": it.served_as,
            "run_id": it.run_id,
            "action": it.action or "publish",
            "by": it.by,
            "verdict": it.verdict_uri,
            "dataset_digest": it.dataset_digest,
            "schema_digest": it.schema_digest,
            "exported_weights_sha256": it.exported_weights_sha256,
            "manifest_sha256": it.manifest_sha256,
            "pruned": "yes" if it.version in pruned else "",
        }
        facts |= {f"metric.{name}": f"{value:.6g}" for name, value in it.metrics.items()}
        versions[it.version] = {
            "version": it.version,
            "uri": str(place.version(it.version) / MODEL),
            "why": line(why)[:_LONGEST],
            "facts": {key: str(value)[:_LONGEST] for key, value in facts.items() if value != ""},
        }
    return {
        "model": model_name,
        "champion": records[0].version,
        "versions": [versions[number] for number in sorted(versions)],
    }


def _host(server: str) -> str:
    try:
        return urlsplit(server).hostname or "its server"
    except ValueError:
        return "its server"
