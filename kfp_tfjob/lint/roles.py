"""Defines rules about replica types, and about the one that decides the result of the job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from kfp_tfjob.lint.job import DECIDERS, KNOWN_ROLES, Job
from kfp_tfjob.lint.rule import Found, error
from kfp_tfjob.storage.formatting import did_you_mean, nearest


@error(f"use one of {', '.join(sorted(set(KNOWN_ROLES.values())))}")
def unknown_role(job: Job) -> Iterator[Found]:
    """The operator creates its pods but ignores their success and their failure."""
    for replica in job.replicas:
        if not replica.role:
            meant = did_you_mean(KNOWN_ROLES.get(nearest(replica.key.lower(), KNOWN_ROLES), ""))
            yield Found(replica.path, f"{replica.key} is not a replica type{meant and '; '}{meant}")


@error("call it Chief")
def master(job: Job) -> Iterator[Found]:
    """With TensorFlow 2, every replica refuses a cluster that has the task type master."""
    for replica in job.of("Master"):
        yield Found(replica.path, "the job has a Master")


@error("keep one of them; further replicas that train are Workers")
def one_chief(job: Job) -> Iterator[Found]:
    """TensorFlow allows one chief and one evaluator; the webhook allows one Chief or Master."""
    chiefs = job.of(*DECIDERS)
    for replica in chiefs[1:]:
        yield Found(replica.path, f"there are {' and '.join(r.key for r in chiefs)}")
    for replica in job.of(*DECIDERS, "Evaluator"):
        if replica.count > 1:
            path = (*replica.path, "replicas")
            yield Found(path, f"{replica.key} has {replica.count} replicas")
    for role, count in Counter(r.role for r in job.of("Worker", "PS", "Evaluator")).items():
        if count > 1:
            yield Found(job.of(role)[1].path, f"{role} appears {count} times")


@error("add a Chief with 1 replica")
def nobody_decides(job: Job) -> Iterator[Found]:
    """A job succeeds when its Chief succeeds or, without a Chief, when its workers do.

    Without either, it never ends. If their number is 0, it is Succeeded before anything has run.
    """
    deciding = job.of(*DECIDERS) or job.of("Worker")
    if job.replicas and not deciding:
        yield Found(job.at(), "there is neither a Chief nor a Worker")
    for replica in deciding:
        if replica.count < 1:
            yield Found((*replica.path, "replicas"), f"{replica.key} has {replica.count} replicas")
