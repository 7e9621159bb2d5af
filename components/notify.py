"""Tells a webhook how a run ended: verdict, remedy, addresses and GPU hours.

The step that ends the run sends it: evaluate without a blessing, publish, a step that failed, the
launcher of a run that was ended, and the exit task for an end that no step could tell.

A run may end several times: a person retries it. The pod of a step tells these tries apart, because
a retry makes new pods. A notification is recorded under its pod before it is sent, with a
conditional create, so a pod sends at most one. A failure that Kubeflow Pipelines retries by itself
is not sent.

A webhook that is dead, slow or lying costs a few seconds and a line in the log, and changes nothing
else.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from kfp_tfjob.components.webhook import Webhook, returned_within
from kfp_tfjob.jobs.masking import Mask
from kfp_tfjob.jobs.record import gpu_hours
from kfp_tfjob.judging.formatting import number
from kfp_tfjob.registry.outcome import LOST_RACE, NOT_BLESSED, PUBLISHED
from kfp_tfjob.storage.errors import ObjectExistsError, StepError
from kfp_tfjob.storage.escaping import short
from kfp_tfjob.storage.failure_record import Failure
from kfp_tfjob.storage.layout import RunLayout
from kfp_tfjob.storage.store import Store

log = logging.getLogger(__name__)
T = TypeVar("T")

SUCCEEDED, SKIPPED = "succeeded", "skipped"
FAILED, CANCELLED = "failed", "cancelled"

STORE_SECONDS, _SEND_SECONDS = 1.0, 2.0  # three calls of the store and one of the webhook
_POD_UID, _RETRY_INDEX = "KFP_POD_UID", "KFP_RETRY_INDEX"
_TEMPLATE = Path("/var/run/argo/template")  # Argo's description of this pod
_RETRIES_FAILURES = ("", "OnFailure", "Always")  # policies of Argo; the empty one is its default
_MOST = 3000  # characters of a message in the text for people
_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})


@dataclass(frozen=True)
class Notice:
    """How a run ended.

    Attributes:
        outcome: PUBLISHED, NOT_BLESSED, LOST_RACE, SUCCEEDED, SKIPPED, FAILED or CANCELLED.
        run_id: The run.
        step: The step that ended it.
        verdict: One word for what happened.
        code: The exit code of the step.
        message: What happened.
        remedy: What to do; empty if nothing has to be done.
        model_name: The model; empty if the step does not know it.
        addresses: Where things are in the store, by name.
        metrics: The metrics of the verdict.
        gpu_hours: GPU hours `used`, `pending` and `lost`; empty without GPUs.
    """

    outcome: str
    run_id: str
    step: str
    verdict: str
    code: int
    message: str
    remedy: str = ""
    model_name: str = ""
    addresses: Mapping[str, str] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    gpu_hours: Mapping[str, float] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The notification for people, in the syntax of Slack."""
        about = f" of {self.model_name}" if self.model_name else ""
        ended = {
            PUBLISHED: "published a model",
            NOT_BLESSED: "was not blessed",
            LOST_RACE: "lost the race and was not published",
            SUCCEEDED: "succeeded",
            SKIPPED: "had nothing new to train on",
            CANCELLED: "was ended before it finished",
        }.get(self.outcome, f"failed in {self.step}")
        lines = [f"*Run {self.run_id}*{about} {ended} ({self.verdict})", short(self.message, _MOST)]
        if self.remedy and self.remedy not in self.message:
            lines.append(f"To do: {short(self.remedy, _MOST)}")
        if self.metrics:
            metrics = (f"{name} {number(value)}" for name, value in self.metrics.items())
            lines.append(", ".join(metrics))
        if any(self.gpu_hours.values()):
            hours = ", ".join(f"{name} {value:.2f}" for name, value in self.gpu_hours.items())
            lines.append(f"GPU hours: {hours}")
        lines += [f"{name}: {address}" for name, address in self.addresses.items()]
        return "\n".join(lines).translate(_ESCAPES)  # no link and no mention from outside

    def document(self) -> dict[str, Any]:
        """Return the body of the notification, without secrets."""
        mask = Mask()
        values = {"text": self.text} | asdict(self)
        values["time"] = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
        return json.loads(mask(json.dumps(values, ensure_ascii=False)))


def failure(run_id: str, found: Failure, model_name: str = "") -> Notice:
    """Return the notice about a run that failed or was ended."""
    outcome = CANCELLED if found.verdict == CANCELLED else FAILED
    ended = (outcome, run_id, found.step, found.verdict, found.code)
    return Notice(*ended, found.message, found.fix, model_name)


def pod_uid() -> str:
    """Return the id of the pod of this step; empty without Kubeflow Pipelines."""
    return os.environ.get(_POD_UID, "")


def will_be_retried(template: Path = _TEMPLATE) -> bool:
    """Tell whether Kubeflow Pipelines will start this step again by itself if it fails."""
    try:
        strategy = json.loads(template.read_bytes()).get("retryStrategy") or {}
        index, limit = int(os.environ.get(_RETRY_INDEX) or 0), int(strategy.get("limit") or 0)
    except (OSError, ValueError, TypeError, AttributeError):
        return False
    return index < limit and str(strategy.get("retryPolicy") or "") in _RETRIES_FAILURES


def notify(notice: Notice, store: Store | None, run: RunLayout | None, key: str = "") -> None:
    """Send a notification unless it was sent before; never raises, and takes at most 5 s.

    `key` tells the run's tries apart; without one, the pod of this step does.
    """
    try:
        webhook = Webhook.from_environment()
    except StepError as error:
        log.warning("no notification is sent: %s", error)
        return
    key = key or pod_uid()
    if webhook is None or not key:
        return
    quick = store.within(0) if store else None
    if quick and run:
        first = within(lambda: _claim(notice, quick, run, key))
        if first is False:
            return  # this pod has sent it
        hours = (within(lambda: gpu_hours(quick, run)) if first else None) or {}
        hours = hours if any(hours.values()) else {}
        addresses = {"run": str(run.base), **notice.addresses}
        notice = Notice(**vars(notice) | {"addresses": addresses, "gpu_hours": hours})
    if wrong := webhook.send(notice.document(), _SEND_SECONDS):
        log.warning("the webhook at %s was not notified: %s", webhook.host, wrong)
    else:
        log.info("the webhook at %s was notified", webhook.host)


def is_known(notice: Notice, store: Store, run: RunLayout, pods: Collection[str]) -> bool:
    """Tell whether a step has sent a notification for this end of the run, from one of its pods."""
    for item in store.list(run.notices):
        if item.address.name.removesuffix(".json") in pods:
            return True
        try:
            known = json.loads(store.read(item.address))
        except ValueError:
            continue
        if (known.get("step"), known.get("message")) == (notice.step, notice.message):
            return True
    return False


def _claim(notice: Notice, store: Store, run: RunLayout, key: str) -> bool:
    """Record a notification before it is sent; return whether this is the first one."""
    record = {"outcome": notice.outcome, "step": notice.step, "verdict": notice.verdict}
    record |= {"code": notice.code, "message": Mask()(notice.message)}
    record["time"] = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%fZ}"
    try:
        store.create(run.notice(key), (json.dumps(record, indent=1) + "\n").encode())
    except ObjectExistsError:
        return False
    return True


def within(call: Callable[[], T]) -> T | None:
    """Return the result of a call of the store; None if it fails or takes longer than a second."""
    return returned_within(STORE_SECONDS, call)
