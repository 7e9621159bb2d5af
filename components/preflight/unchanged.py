"""Decides whether training is unnecessary because an earlier run had the same inputs.

The inputs are one digest over the dataset, the model code, the job's options and image, and the
gate. Every evaluated run is stored under its digest, so a schedule that finds no new data can skip
training (`train_options.when_unchanged: skip`). An earlier run is accepted only while its verdict
and the champion behind it still exist. Otherwise, deleting a bad model would leave a schedule that
never trains again. Called by preflight's engine.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from kfp_tfjob.common.errors import ConfigurationError, DataError, ObjectNotFoundError
from kfp_tfjob.jobs.spec import JobSpec
from kfp_tfjob.options.data_contract import Contract
from kfp_tfjob.options.gate import GateOptions, parse_gate
from kfp_tfjob.registry.champion import ROLLBACK, Champion
from kfp_tfjob.registry.champion_records import champions
from kfp_tfjob.registry.training_cache import TrainedRun, newest
from kfp_tfjob.registry.verdict_record import ModelVerdict, verdict_in_force
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.documents import InvalidDocumentError
from kfp_tfjob.storage.layout import MANIFEST, RunLayout
from kfp_tfjob.user_code.model_code import Code

from ..step import Step

log = logging.getLogger(__name__)

_ROLES = ("chief", "worker", "ps", "evaluator")
# The settings of a pod that a program can read, and that can therefore change the model.
_VISIBLE_SETTINGS = {"env", "gpu_resource", "volumes"}


@dataclass(frozen=True)
class UsedGate:
    """The gate of a run.

    Attributes:
        options: Its conditions; None for a run without evaluation.
        evaluator_digest: The digest of the code of `gate.evaluator`; empty without one.
    """

    options: GateOptions | None
    evaluator_digest: str

    def decided(self, verdict: ModelVerdict) -> bool:
        """Return whether a verdict was decided by this gate and by this code of its evaluator.

        The inputs' digest does not prove it: a run may have been continued with another gate, or
        the evaluator's code may have changed while the run trained.
        """
        try:
            verdict_gate = parse_gate(verdict.gate)
        except ConfigurationError:  # a gate of another version
            return False
        same_gate = _without_evaluator_path(verdict_gate) == _without_evaluator_path(self.options)
        return same_gate and verdict.evaluator_digest == self.evaluator_digest


def inputs_digest(
    spec: JobSpec,
    code: Code,
    dataset_digest: str,
    contract: Contract,
    gate: UsedGate,
) -> str:
    """Return the digest of all inputs that affect the trained model or its evaluation.

    It has 32 hexadecimal digits. Where the pods run, their time limits and the number of
    checkpoints are not part of it.

    Args:
        spec: The training job.
        code: The code that builds the model.
        dataset_digest: The dataset; empty without data.
        contract: How far the data may differ from the champion's data.
        gate: The gate of the run.
    """
    body = {
        "dataset": dataset_digest,
        "code": {path: sha256(content).hexdigest() for path, content in code.files.items()},
        "training": spec.for_result,
        "workers": spec.workers,
        "gpus": spec.gpus,
        "image": spec.image,
        "roles": {role: _visible_settings(spec, role) for role in _ROLES},
        "steps": {"prepare": {}, "evaluate": {}},  # keeps the digests of earlier runs
        "contract": contract.model_dump(mode="json"),
        "gate": _without_evaluator_path(gate.options),
    }
    if gate.evaluator_digest:
        body["evaluator"] = gate.evaluator_digest
    document = json.dumps(body, sort_keys=True, ensure_ascii=False)
    return sha256(document.encode()).hexdigest()[:32]


def _without_evaluator_path(gate: GateOptions | None) -> dict[str, Any] | None:
    """Return the gate without its evaluator's path, because the digest of that code is compared."""
    return gate.model_dump(mode="json", exclude={"evaluator"}) if gate else None


def _visible_settings(spec: JobSpec, role: str) -> dict[str, Any]:
    """Return the settings of a role's pods that a program can observe."""
    visible = spec.pod.of(role).model_dump(mode="json", include=_VISIBLE_SETTINGS)
    for volume in visible["volumes"] or ():
        if not volume["config_map"]:  # keeps the digests of earlier runs
            del volume["config_map"]
    settings = getattr(spec.pod, role)
    replicas_and_gpus = settings.model_dump(mode="json", include={"replicas", "gpus"})
    image = {"image": settings.image} if settings.image else {}
    return visible | replicas_and_gpus | image


def find_earlier_run(step: Step, model_name: str, digest: str, gate: UsedGate) -> TrainedRun | None:
    """Return the earlier run that makes training unnecessary; None if this run must train.

    Args:
        step: The run and its store.
        model_name: The model.
        digest: The digest of the run's inputs.
        gate: The gate of the run.
    """
    earlier = newest(step.store, step.layout, model_name, digest)
    if earlier is None:
        log.info("no evaluated run of %s has these inputs, so this run trains", model_name)
        return None
    if earlier.run_id == step.run_id:
        return None  # a retry of a run that trained continues where it was
    if obstacle := _obstacle(step, model_name, earlier, gate):
        log.info("run %s has the same inputs, but %s, so this run trains", earlier.run_id, obstacle)
        return None
    return earlier


def record_earlier_run(step: Step, earlier: TrainedRun | None) -> None:
    """Record that this run does not train, or remove that record of an earlier attempt."""
    if earlier is None:
        step.store.delete(step.run.unchanged)
        return
    step.store.write(step.run.unchanged, earlier.to_bytes(), "application/json")
    log.info("nothing has changed since run %s: this run does not train", earlier.run_id)


def _obstacle(step: Step, model_name: str, run: TrainedRun, gate: UsedGate) -> str:
    """Return why an earlier run cannot replace training; empty if it can."""
    try:
        verdict = verdict_in_force(step.store, RunLayout(S3Address.parse(run.run_uri)))
    except DataError:
        return f"its verdict {run.verdict_uri} is gone"
    if not gate.decided(verdict):
        return "its verdict used another gate"
    model = step.layout.model(model_name)
    if verdict.blessed:
        # publish writes the record after the champion that the model was compared with.
        number, run_id = verdict.met + 1, run.run_id
        champion_name = "the model that it published"
    elif verdict.champion:
        number, run_id = verdict.champion.number, verdict.champion.run_id
        champion_name = "the champion that it lost to"
    else:
        return ""
    try:
        champion = Champion.from_bytes(number, step.store.read(model.champion(number)))
        step.store.head(model.version(champion.version) / MANIFEST)
    except (ObjectNotFoundError, InvalidDocumentError):
        return f"{champion_name} is gone"
    if champion.run_id != run_id:
        return f"{champion_name} is not the champion"
    # After a rollback, another champion is in force, and the model might win against that one.
    successors = champions(step.store, step.layout, model_name, above=champion.number)
    if not verdict.blessed and any(successor.action == ROLLBACK for successor in successors):
        return f"{champion_name} was rolled back"
    return ""
