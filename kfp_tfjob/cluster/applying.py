"""Compares objects with those of a cluster, and applies them.

Server-side apply decides both: its dry run is what would be stored. A field that someone else has
set to a different value is reported and not overwritten.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from kfp_tfjob.cluster.backend import JobExistsError, Object
from kfp_tfjob.cluster.client import ClusterClient
from kfp_tfjob.cluster.errors import ForbiddenError, NotFoundError
from kfp_tfjob.cluster.manifests import is_of_cluster, path_of
from kfp_tfjob.storage.errors import ConfigurationError, Problem, StepError

MANAGER = "kfp-tfjob"
# What the server keeps for itself, or changes on its own.
_SERVER = (
    "creationTimestamp",
    "generation",
    "managedFields",
    "resourceVersion",
    "uid",
)


_SHARED = ("Namespace", "ClusterRole", "Secret")


@dataclass(frozen=True)
class Change:
    """What applying one object does.

    Attributes:
        manifest: The object as it is applied.
        action: `create`, `change` or `keep`.
        diff: The lines that differ, as in a unified diff; none for `create` and `keep`.
        notes: What else to know: warnings of the API server.
        labels: The labels that an existing object gets, and did not have.
    """

    manifest: Mapping[str, Any]
    action: str
    diff: Sequence[str] = ()
    notes: Sequence[str] = ()
    labels: Sequence[str] = ()

    @property
    def kind(self) -> str:
        """The kind of the object."""
        return str(self.manifest["kind"])

    @property
    def name(self) -> str:
        """The name of the object."""
        return str(self.manifest["metadata"]["name"])

    @property
    def shown(self) -> Object:
        """The object without the values of a Secret."""
        return {key: value for key, value in self.manifest.items() if key != "stringData"}


def compare(api: ClusterClient, wanted: Iterable[Object]) -> list[Change]:
    """Return what applying objects would change, by a dry run.

    Args:
        api: The cluster.
        wanted: The objects; a Secret with its values in `stringData`.

    Raises:
        ConfigurationError: Some cannot be applied, with every reason.
        ClusterUnavailableError: The API server did not respond in time.
    """
    changes: list[Change] = []
    problems: dict[str, Problem | str] = {}  # a missing namespace concerns every object
    for manifest in wanted:
        try:
            changes.append(_compared(api, manifest))
        except ConfigurationError as error:
            problems |= {str(problem): problem for problem in error.problems}
    ConfigurationError.raise_if(problems.values())
    return changes


def apply(api: ClusterClient, changes: Iterable[Change]) -> None:
    """Apply objects that were compared.

    Raises:
        ConfigurationError: One cannot be applied any more.
        ClusterUnavailableError: The API server did not respond in time.
    """
    for change in changes:
        if change.action != "keep":
            _put(api, change.manifest, dry_run=False)


def to_remove(changes: Iterable[Change]) -> list[str]:
    """Return the commands that undo applied changes: what existed before stays.

    A Secret and a ClusterRole stay too: others may use them by now.
    """
    names: dict[str, list[str]] = {}
    commands = []
    for change in changes:
        name = f"{change.kind.lower()}/{change.name}"
        place = "" if is_of_cluster(change.manifest) else f"-n {_namespace(change)} "
        if change.action == "create" and change.kind not in _SHARED:
            names.setdefault(place, []).append(name)
        elif change.labels:
            keys = " ".join(f"{key}-" for key in change.labels)
            commands.append(f"kubectl label {place}{name} {keys}")
    created = [f"kubectl delete {place}{' '.join(found)}" for place, found in names.items()]
    return [*created, *commands]


def _namespace(change: Change) -> str:
    return str(change.manifest["metadata"]["namespace"])


def _compared(api: ClusterClient, manifest: Object) -> Change:
    if manifest["kind"] == "Secret":
        return _compared_secret(api, manifest)
    try:
        before = api.get(path_of(manifest))
    except ForbiddenError as error:
        raise ConfigurationError(_forbidden(manifest, error)) from error
    after, warnings = _put(api, manifest, dry_run=True)
    if before is None:
        return Change(manifest, "create", notes=warnings)
    if diff := _diff(before, after):
        had = before["metadata"].get("labels") or {}
        new = [key for key in manifest["metadata"].get("labels") or {} if key not in had]
        return Change(manifest, "change", diff, warnings, new)
    return Change(manifest, "keep", notes=warnings)


def _compared_secret(api: ClusterClient, manifest: Object) -> Change:
    """Create a Secret as a dry run: one that exists is never changed, and need not be readable."""
    try:
        _put(api, manifest, dry_run=True)
    except _ExistsError:
        return Change(manifest, "keep", notes=["it exists, and its values stay as they are"])
    names = ", ".join(manifest["stringData"])
    return Change(manifest, "create", notes=[f"with {names} from your environment"])


class _ExistsError(ConfigurationError):
    """A Secret of this name exists."""


def _put(
    api: ClusterClient, manifest: Mapping[str, Any], dry_run: bool
) -> tuple[Object, list[str]]:
    """Apply an object, or create a Secret.

    Raises:
        ConfigurationError: That is not possible.
    """
    is_secret = manifest["kind"] == "Secret"
    try:
        if not is_secret:
            return api.apply(path_of(manifest), manifest, MANAGER, dry_run)
        query = {"fieldManager": MANAGER} | ({"dryRun": "All"} if dry_run else {})
        path = path_of(manifest).rpartition("/")[0]
        return api.request("POST", path, query, manifest), []
    except JobExistsError as error:
        wrong = _ExistsError if is_secret else ConfigurationError
        raise wrong(_conflict(manifest, error)) from error
    except NotFoundError as error:
        raise ConfigurationError(_no_place(manifest, error)) from error
    except ForbiddenError as error:
        raise ConfigurationError(_forbidden(manifest, error)) from error


def _diff(before: Object, after: Object) -> list[str]:
    old, new = (yaml.safe_dump(_plain(item)).splitlines() for item in (before, after))
    return list(difflib.unified_diff(old, new, lineterm="", n=2))[2:]


def _plain(found: Object) -> Object:
    """Return an object without what only the server sets."""
    metadata = {key: value for key, value in found["metadata"].items() if key not in _SERVER}
    return {key: value for key, value in found.items() if key != "status"} | {"metadata": metadata}


def _called(manifest: Mapping[str, Any]) -> str:
    return f"{manifest['kind']} {manifest['metadata']['name']}"


def _said(error: StepError) -> object:
    problem = error.problems[0]
    return problem.received if isinstance(problem, Problem) else problem


def _conflict(manifest: Mapping[str, Any], error: StepError) -> Problem:
    return Problem(
        f"{_called(manifest)} was changed by someone else, and is not overwritten",
        received=_said(error),
        expected="the fields as kfp-tfjob sets them",
        fix=f"undo that change, or delete {_called(manifest)} and run this again",
    )


def _no_place(manifest: Mapping[str, Any], error: StepError) -> Problem:
    place = manifest["metadata"].get("namespace") or manifest["metadata"]["name"]
    return Problem(
        f"there is no namespace {place}",
        received=_said(error),
        expected="the namespace of the runs",
        fix=f"correct --namespace, or create it: kubectl create namespace {place}",
    )


def _forbidden(manifest: Mapping[str, Any], error: StepError) -> Problem:
    return Problem(
        f"you may not apply {_called(manifest)}",
        received=_said(error),
        expected="the rights to get, create and patch it, and every right that a Role grants",
        fix="send this command to an administrator of the namespace or of the cluster",
    )
