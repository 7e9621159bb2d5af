"""Limits the waiting of the pod of a step, and says which key of `pod` to change."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kfp_tfjob.cluster import quota, waiting
from kfp_tfjob.components.step_job import GRACE_SECONDS, StepJob
from kfp_tfjob.jobs.status import job_condition
from kfp_tfjob.jobs.verdict import Judgement, Verdict

_MOMENT = 5.0  # a Secret or a policy may change while the Job is being created
_PULL_SECONDS = 300.0  # as train_options.image_pull_timeout_seconds
_SLACK = 60.0  # lets the kubelet end the pod first
_FIELDS = {"cpu": "cpu", "memory": "memory", "ephemeral-storage": "ephemeral_storage"}
_PASSED = "DeadlineExceeded"


@dataclass
class StepJobLimits:
    """The limits of one Job, checked at every look.

    Attributes:
        job: The work.
        clock: A monotonic clock; tests replace it.
        next_limit: Seconds until the next limit may be reached.
    """

    job: StepJob
    clock: Callable[[], float] = field(default=time.monotonic, repr=False)
    next_limit: float = 0.0
    _since: dict[str, float] = field(default_factory=dict)

    def look(
        self,
        job: Mapping[str, Any],
        pods: Sequence[Mapping[str, Any]],
        events: Sequence[Mapping[str, Any]],
    ) -> Judgement | None:
        """Return a verdict if a limit is reached.

        Args:
            job: The Job with its status.
            pods: Its pods.
            events: The events of the Job and of a waiting pod.
        """
        now = self.clock()
        self.next_limit = float(self.job.settings.deadline_seconds)
        for name, seconds, found in self._limits(job, pods, events):
            if found is None:
                self._since.pop(name, None)
                continue
            left = seconds - (now - self._since.setdefault(name, now))
            if left <= 0:
                return found
            self.next_limit = max(min(self.next_limit, left), 0.1)
        return None

    def _limits(
        self,
        job: Mapping[str, Any],
        pods: Sequence[Mapping[str, Any]],
        events: Sequence[Mapping[str, Any]],
    ) -> Iterator[tuple[str, float, Judgement | None]]:
        """Yield the name of each limit, how long it may hold, and the verdict; None if not held."""
        settings, key = self.job.settings, f"pod.{self.job.name}"
        begun = any(waiting.has_begun(pod) for pod in pods)
        refused = [] if pods else waiting.not_made(events)
        secrets = waiting.missing_secrets(pods, events, job)
        unpulled, misconfigured = waiting.image_pull(pods), waiting.misconfigured(pods)
        never = quota.never(job, refused)
        yield (
            "quota",
            0,
            self._unschedulable(never, pods, refused) if never else None,
        )
        forbidden = [] if pods else waiting.forbidden(events)
        yield (
            "forbidden",
            _MOMENT,
            Judgement(Verdict.REFUSED, f"the cluster does not allow the pod: {forbidden[-1]}")
            if forbidden
            else None,
        )
        yield (
            "secret",
            _MOMENT,
            Judgement(
                Verdict.USER_ERROR,
                f"a Secret is missing: {secrets[0]}",
                fix="; ".join(dict.fromkeys(_create(key, item) for item in secrets)),
            )
            if secrets
            else None,
        )
        yield (
            "image",
            _PULL_SECONDS,
            Judgement(
                Verdict.IMAGE_PULL,
                f"the image cannot be pulled: {unpulled[0]}",
                fix=f"compile the YAML with an image that nodes can pull, or set"
                f" {key}.image_pull_secret",
            )
            if unpulled
            else None,
        )
        yield (
            "configuration",
            _PULL_SECONDS,
            Judgement(
                Verdict.USER_ERROR,
                f"the container cannot be created: {misconfigured[0]}",
                fix=f"correct what the message names, in {key} or in pod.all",
            )
            if misconfigured
            else None,
        )
        said = [text for pod in pods for text in waiting.scheduler_says(pod)] or refused[-1:]
        said = said or [text for pod in pods if (text := waiting.reason(pod, events))]
        seconds = settings.pending_timeout_seconds
        why = f"its pod has not started after {seconds} s: {(said or ['no reason is known'])[0]}"
        yield "pending", seconds, None if begun else self._unschedulable(why, pods, refused)
        late = Judgement(
            Verdict.DEADLINE,
            "the pod has run longer than its deadline, and its node has not ended it",
            fix=self._raise("deadline_seconds"),
        )
        limit = settings.deadline_seconds + GRACE_SECONDS + _SLACK
        yield "deadline", limit, late if begun else None

    def _unschedulable(
        self, why: str, pods: Iterable[Mapping[str, Any]], refused: Sequence[str]
    ) -> Judgement:
        key, settings = f"pod.{self.job.name}", self.job.settings
        lower: list[str] = []
        others: list[str] = []
        for message in (text for pod in pods for text in waiting.scheduler_says(pod)):
            lower += waiting.insufficient(message)
            if "node affinity/selector" in message or "node selector" in message:
                placed = settings.affinity and not settings.node_selector
                others.append(f"correct {key}.{'affinity' if placed else 'node_selector'}")
            if "taint" in message:
                others.append(f"tolerate the taints of more nodes with {key}.tolerations")
        for refusal in quota.exceeded(refused):
            lower += [name.rpartition(".")[2] for name in refusal.requested]
            others.append(f"have the ResourceQuota {refusal.name} raised")
        fields = [_FIELDS[name] for name in dict.fromkeys(lower) if name in _FIELDS]
        names = [f"{key}.{name} ({getattr(settings, name)} now)" for name in fields]
        ways = [f"lower {' or '.join(names)}"] if names else []
        ways += dict.fromkeys(others)
        fix = ", or ".join(ways) or f"get nodes, or correct {key}"
        return Judgement(Verdict.UNSCHEDULABLE, why, fix=fix)

    def explained(self, judgement: Judgement, job: Mapping[str, Any] | None) -> Judgement:
        """Return a judgement on a Job that has ended, with the key to change.

        Args:
            judgement: What its pod and its status show.
            job: The Job; None if it is gone.
        """
        settings = self.job.settings
        failed = (job_condition(job, "failed") if job else None) or {}
        if failed.get("reason") == _PASSED and judgement.verdict != Verdict.SUCCEEDED:
            judgement = Judgement(Verdict.DEADLINE, f"{self.job.name}-0 ran past its deadline")
        if judgement.verdict == Verdict.OUT_OF_MEMORY:
            sentence = f"{judgement.sentence}: it may use {settings.memory}"
            return replace(judgement, sentence=sentence, fix=self._raise("memory"))
        keys = {
            Verdict.OUT_OF_DISK: "ephemeral_storage",
            Verdict.DEADLINE: "deadline_seconds",
        }
        if key := keys.get(judgement.verdict):
            return replace(judgement, fix=self._raise(key))
        if judgement.verdict == Verdict.LOST:
            return replace(judgement, fix="start the run again")
        return judgement

    def _raise(self, key: str) -> str:
        now = getattr(self.job.settings, key)
        unit = " s" if key.endswith("_seconds") else ""
        return f"raise pod.{self.job.name}.{key} ({now}{unit} now)"


def _create(key: str, missing: waiting.MissingSecret) -> str:
    what = f"add the key {missing.key} to" if missing.key else "create"
    where = f"{key}.env.{missing.variable}" if missing.variable else f"{key}.image_pull_secret"
    return f"{what} Secret {missing.name} in the namespace of the run, or correct {where}"
