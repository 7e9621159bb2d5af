"""Tells a webhook how a run ended: verdict, remedy, addresses and GPU hours.

The step that ends the run sends it: evaluate without a blessing, publish, or a step that failed.
The exit task sends it for an end that no step could report, such as a step that ran out of memory.
A failure that Kubeflow Pipelines retries by itself is not sent.

A webhook or a store that is down, slow or wrong costs a few seconds and a log line, and changes
nothing else. Without a webhook, nothing is read.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kfp_tfjob.common.errors import StepError
from kfp_tfjob.common.escaping import short
from kfp_tfjob.jobs.attempt_record import gpu_hours
from kfp_tfjob.jobs.failure_record import Failure
from kfp_tfjob.jobs.log_masking import Mask
from kfp_tfjob.judging.formatting import number
from kfp_tfjob.registry.outcome import LOST_RACE, NOT_BLESSED, PUBLISHED
from kfp_tfjob.storage.layout import RunLayout
from kfp_tfjob.storage.store import Store

from .webhook import Webhook, call_with_timeout

log = logging.getLogger(__name__)

SUCCEEDED, SKIPPED = "succeeded", "skipped"
FAILED, CANCELLED = "failed", "cancelled"

# A step reads the run's records, then its GPU hours, then sends. Each read is about six requests,
# and a store on another continent takes 0.3 s for one.
STORE_SECONDS, _SEND_SECONDS = 5.0, 2.0
_RETRY_INDEX = "KFP_RETRY_INDEX"
_TEMPLATE = Path("/var/run/argo/template")  # Argo's description of this pod
_RETRY_ON_FAILURE = ("", "OnFailure", "Always")  # Argo's policies; the empty one is its default
_MOST = 3000  # characters of a message and of a remedy in the text for people
_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})


@dataclass(frozen=True)
class Notice:
    """How a run ended.

    Attributes:
        outcome: PUBLISHED, NOT_BLESSED, LOST_RACE, SUCCEEDED, SKIPPED, FAILED or CANCELLED.
        run_id: The run.
        step: The step that ended it.
        verdict: The cause in one word, for programs: a Failure's verdict, `blessed`, ...
        code: The step's exit code.
        message: What happened.
        remedy: What to do; empty if nothing has to be done.
        model_name: The model; empty if the step does not know it.
        addresses: Addresses in the store by name, such as `run` and `report`.
        metrics: The verdict's metrics by name.
        gpu_hours: GPU hours `used`, `pending` and `lost`; empty without GPUs.
        docs: The address of the page that explains a failure; empty without a failure.
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
    docs: str = ""

    @property
    def text(self) -> str:
        """The notification for people, in the syntax of Slack."""
        model = f" of {self.model_name}" if self.model_name else ""
        outcome = {
            PUBLISHED: "published a model",
            NOT_BLESSED: "was not blessed",
            LOST_RACE: "lost the race and was not published",
            SUCCEEDED: "succeeded",
            SKIPPED: "had nothing new to train on",
            CANCELLED: "was stopped before it finished",
        }.get(self.outcome, f"failed in {self.step}")
        title = f"*Run {self.run_id}*{model} {outcome} ({self.verdict})"
        lines = [title, short(self.message, _MOST)]
        if self.remedy and self.remedy not in self.message:
            lines.append(f"To do: {short(self.remedy, _MOST)}")
        if self.metrics:
            metrics = (f"{name} {number(metric)}" for name, metric in self.metrics.items())
            lines.append(", ".join(metrics))
        if any(self.gpu_hours.values()):
            hours = ", ".join(f"{name} {spent:.2f}" for name, spent in self.gpu_hours.items())
            lines.append(f"GPU hours: {hours}")
        lines += [f"{name}: {address}" for name, address in self.addresses.items()]
        lines += [f"docs: {self.docs}"] if self.docs else []
        return "\n".join(lines).translate(_ESCAPES)  # no link and no mention from outside

    def document(self) -> dict[str, Any]:
        """Return the notification's JSON body, with secrets masked."""
        mask = Mask()
        # Only these may quote the user's data or logs. Programs read names, addresses and keys.
        notice = replace(self, message=mask(self.message), remedy=mask(self.remedy))
        document = {"text": notice.text} | asdict(notice)
        if not self.docs:
            del document["docs"]
        return document | {"time": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"}


def failure(run_id: str, cause: Failure, model_name: str = "") -> Notice:
    """Return the notice of a run that failed or was cancelled."""
    return Notice(
        outcome=CANCELLED if cause.verdict == CANCELLED else FAILED,
        run_id=run_id,
        step=cause.step,
        verdict=cause.verdict,
        code=cause.code,
        message=cause.message,
        remedy=cause.fix,
        model_name=model_name,
        docs=cause.docs_address,
    )


def will_be_retried(template: Path = _TEMPLATE) -> bool:
    """Return whether Kubeflow Pipelines will start this step again by itself if it fails."""
    try:
        strategy = json.loads(template.read_bytes()).get("retryStrategy") or {}
        index, limit = int(os.environ.get(_RETRY_INDEX) or 0), int(strategy.get("limit") or 0)
    except (OSError, ValueError, TypeError, AttributeError):
        return False  # another version of Argo; a notification too many is better than none
    return index < limit and str(strategy.get("retryPolicy") or "") in _RETRY_ON_FAILURE


def notify(notice: Notice, store: Store | None, run: RunLayout | None) -> None:
    """Send a notification; never raises, and takes at most 7 s."""
    if webhook := _webhook():
        _send(webhook, notice, store, run)


def notify_from_store(read: Callable[[], Notice], store: Store, run: RunLayout) -> None:
    """Send the notification that `read` makes from the store; never raises, at most 12 s."""
    if (webhook := _webhook()) is None:
        return
    if notice := call_with_timeout(STORE_SECONDS, read):
        _send(webhook, notice, store, run)
    else:
        log.warning(
            "the webhook at %s was not notified: the run's records could not be read from the"
            " store within %.0f s",
            webhook.host,
            STORE_SECONDS,
        )


def _webhook() -> Webhook | None:
    """Return the webhook of this process; None if there is none, or its address is invalid."""
    try:
        return Webhook.from_environment()
    except StepError as error:
        log.warning("no notification is sent: %s", error)
        return None


def _send(webhook: Webhook, notice: Notice, store: Store | None, run: RunLayout | None) -> None:
    if store and run:
        store = store.with_patience(0)
        hours = call_with_timeout(STORE_SECONDS, lambda: gpu_hours(store, run)) or {}
        hours = hours if any(hours.values()) else {}
        addresses = {"run": str(run.base), **notice.addresses}
        notice = replace(notice, addresses=addresses, gpu_hours=hours)
    if problem := webhook.send(notice.document(), _SEND_SECONDS):
        log.warning("the webhook at %s was not notified: %s", webhook.host, problem)
    else:
        log.info("the webhook at %s was notified", webhook.host)
