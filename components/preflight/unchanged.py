"""Finds out whether a run would train the same model again.

Its inputs are the same as those of an earlier run if data, code, options and image are. That run
counts only if what it left is still there: a deleted run, version or champion makes this one train.
"""

from __future__ import annotations

import json
import logging
from hashlib import sha256
from typing import Any

from kfp_tfjob.components.step import Step
from kfp_tfjob.jobs.spec import JobSpec
from kfp_tfjob.options.data import DataOptions
from kfp_tfjob.options.gate import GateOptions, parse_gate
from kfp_tfjob.options.parse import parse
from kfp_tfjob.options.pipeline import RunParameters
from kfp_tfjob.registry.champion_records import champions
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.champion import ROLLBACK, Champion
from kfp_tfjob.storage.documents import InvalidDocumentError
from kfp_tfjob.storage.errors import ConfigurationError, DataError, ObjectNotFoundError
from kfp_tfjob.storage.layout import MANIFEST, RunLayout
from kfp_tfjob.storage.training_cache import TrainedRun, newest
from kfp_tfjob.storage.verdict_record import ModelVerdict, verdict_in_force
from kfp_tfjob.user_code.model_code import Code

log = logging.getLogger(__name__)

_ROLES = ("chief", "worker", "ps", "evaluator")
_SEEN = {"env", "gpu_resource", "volumes"}


def inputs_digest(
    values: RunParameters,
    spec: JobSpec,
    code: Code,
    dataset_digest: str,
    evaluator_digest: str = "",
) -> str:
    """Return the digest of everything that decides what a run trains and how it is judged.

    How the pods are placed, how long they may take, and how many checkpoints are kept is not part
    of it.
    """
    contract = parse(DataOptions, "data_options", values["data_options"]).contract
    body = {
        "dataset": dataset_digest,
        "code": {path: sha256(data).hexdigest() for path, data in code.files.items()},
        "training": spec.for_result,
        "workers": spec.workers,
        "gpus": spec.gpus,
        "image": spec.image,
        "roles": {role: _role(spec, role) for role in _ROLES},
        "steps": {"prepare": {}, "evaluate": {}},  # keeps the digests of earlier runs
        "contract": contract.model_dump(mode="json"),
        "gate": _without_code(parse_gate(values["gate"])),
    }
    if evaluator_digest:
        body["evaluator"] = evaluator_digest
    text = json.dumps(body, sort_keys=True, ensure_ascii=False)
    return sha256(text.encode()).hexdigest()[:32]


def _without_code(gate: GateOptions | None) -> dict[str, Any] | None:
    """Return the gate without the place of its evaluator's code."""
    return gate.model_dump(mode="json", exclude={"evaluator"}) if gate else None


def _is_of(verdict: ModelVerdict, gate: GateOptions | None, evaluator_digest: str) -> bool:
    """Return whether a verdict is of this gate: a run that continues may have another one.

    The code of its evaluator may also have changed while the run trained.
    """
    try:
        same = _without_code(parse_gate(verdict.gate)) == _without_code(gate)
    except ConfigurationError:  # a gate of another version
        return False
    return same and verdict.evaluator_digest == evaluator_digest


def _role(spec: JobSpec, role: str) -> dict[str, Any]:
    """Return what a program can see of its pod's settings."""
    found = spec.pod.of(role).model_dump(mode="json", include=_SEEN)
    for volume in found["volumes"] or ():
        if not volume["config_map"]:  # keeps the digests of earlier runs
            del volume["config_map"]
    settings = getattr(spec.pod, role)
    own = settings.model_dump(mode="json", include={"replicas", "gpus"})
    image = {"image": settings.image} if settings.image else {}
    return found | own | image


def earlier(
    step: Step, model_name: str, digest: str, gate: tuple[GateOptions | None, str]
) -> TrainedRun | None:
    """Return an earlier run with these inputs and gate that makes training unnecessary, or None."""
    found = newest(step.store, step.layout, model_name, digest)
    if found is None:
        log.info("no evaluated run of %s has these inputs, so this run trains", model_name)
        return None
    if found.run_id == step.run_id:
        return None  # a retry of a run that trained continues where it was
    if missing := _missing(step, model_name, found, gate):
        log.info("run %s has the same inputs, but %s, so this run trains", found.run_id, missing)
        return None
    return found


def keep(step: Step, found: TrainedRun | None) -> None:
    """Record that this run does not train, or remove that record from an earlier try."""
    if found is None:
        step.store.delete(step.run.unchanged)
        return
    step.store.write(step.run.unchanged, found.to_bytes(), "application/json")


def _missing(
    step: Step, model_name: str, run: TrainedRun, gate: tuple[GateOptions | None, str]
) -> str:
    """Return what an earlier run no longer has; empty if everything is there."""
    try:
        verdict = verdict_in_force(step.store, RunLayout(S3Address.parse(run.run_uri)))
    except DataError:
        return f"its verdict {run.verdict_uri} is gone"
    if not _is_of(verdict, *gate):
        return "its verdict used another gate"
    model = step.layout.model(model_name)
    blessed, met = verdict.blessed, verdict.champion
    if blessed:
        wanted = (verdict.met + 1, run.run_id)
    elif met:
        wanted = (met.number, met.run_id)
    else:
        return ""
    what = "the model that it published" if blessed else "the champion that it lost to"
    try:
        champion = Champion.from_bytes(wanted[0], step.store.read(model.champion(wanted[0])))
        step.store.head(model.version(champion.version) / MANIFEST)
    except (ObjectNotFoundError, InvalidDocumentError):
        return f"{what} is gone"
    if champion.run_id != wanted[1]:
        return f"{what} is not the champion"
    later = champions(step.store, step.layout, model_name, above=champion.number)
    if not blessed and any(it.action == ROLLBACK for it in later):
        return f"{what} was rolled back"
    return ""
