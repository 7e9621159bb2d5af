"""Defines rules about names, fields and values that a cluster refuses or drops."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from kfp_tfjob.jobs.objects import Object
from kfp_tfjob.jobs.tfjob import TFJOB
from kfp_tfjob.lint.job import RUN_POLICY, Job, mapping, text
from kfp_tfjob.lint.rule import Found, error

_LONGEST = 63  # characters of the name of a Service
_GENERATED = 5  # characters that generateName adds
_RESTARTS = ("Never", "OnFailure", "Always", "ExitCode")
_CLEANING = ("Running", "All", "None")
_MANAGERS = (f"{TFJOB.group}/training-operator", "kueue.x-k8s.io/multikueue")


@error(f"write apiVersion: {TFJOB.api_version} and kind: {TFJOB.name}")
def version(job: Job) -> Iterator[Found]:
    """The operator serves kubeflow.org/v1 only, and older objects are not converted."""
    for key, right in (("apiVersion", TFJOB.api_version), ("kind", TFJOB.name)):
        value = job.body.get(key)
        if value != right:
            yield Found((*job.path, key), f"{key} is {value}")


@error("give metadata.name a valid and shorter name")
def name(job: Job) -> Iterator[Found]:
    """A name consists of lowercase letters, digits and -, and begins with a letter.

    Each pod has a Service NAME-TYPE-INDEX of at most 63 characters. If that is too long, the pods
    start without their Services, and the job never gets a status.
    """
    metadata = mapping(job.body, "metadata")
    given = job.name or text(metadata, "generateName") + "x" * _GENERATED
    path = (*job.path, "metadata", "name" if job.name else "generateName")
    if not job.name and not metadata.get("generateName"):
        yield Found((*job.path, "metadata"), "the job has no name")
        return
    if not re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", given):
        yield Found(path, f"{given!r} is not a valid name")
    services = [f"{given}-{replica.key.lower()}-{replica.count - 1}" for replica in job.replicas]
    longest = max([given, *services], key=len)
    if len(longest) > _LONGEST:
        yield Found(path, f"the Service {longest} would have {len(longest)} characters")


@error(f"list the replica types under spec.{TFJOB.replicas_key}")
def replica_types(job: Job) -> Iterator[Found]:
    """The operator reads nothing else."""
    if not job.replicas:
        yield Found((*job.path, "spec"), f"there are no {TFJOB.replicas_key}")


@error("move it to spec.runPolicy")
def run_policy_fields(job: Job) -> Iterator[Found]:
    """Since v1 these fields belong under spec.runPolicy.

    Under spec, they are dropped without an error: pods keep their GPUs after the end, and limits
    have no effect.
    """
    for key in RUN_POLICY:
        if key in job.spec:
            yield Found((*job.path, "spec", key), f"{key} is under spec")


@error("use one of the values that the operator accepts")
def unknown_word(job: Job) -> Iterator[Found]:
    """Nothing checks these words.

    Pods with an unknown restartPolicy are never created, an unknown cleanPodPolicy means All,
    and an unknown managedBy is refused.
    """
    places: list[tuple[Object, str, tuple[str, ...], Any]] = [
        (job.run_policy, "cleanPodPolicy", _CLEANING, (*job.path, "spec", "runPolicy")),
        (job.run_policy, "managedBy", _MANAGERS, (*job.path, "spec", "runPolicy")),
        (job.spec, "successPolicy", ("", "AllWorkers"), (*job.path, "spec")),
    ]
    places += [(r.body, "restartPolicy", _RESTARTS, r.path) for r in job.replicas]
    places += [
        (container.body, "restartPolicy", ("Always",), container.path)
        for _, container in job.every_container()
    ]
    for body, key, known, path in places:
        value = body.get(key)
        if isinstance(value, str) and value not in known:
            names = ", ".join(word or "nothing" for word in known)
            yield Found((*path, key), f"{key} is {value}, and not one of {names}")
