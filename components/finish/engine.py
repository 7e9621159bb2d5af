"""Say how a run ended, for people: what was decided, or what failed and what to do about it.

It reads what the steps left in S3 and what the run has left on the cluster, because KFP tells an
exit task nothing it can rely on: the status it is given says RUNNING for ended runs, and its error
is always empty. What still runs on the cluster is ended first.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from typing import Any

from components.finish.cluster import Left, end_jobs
from components.finish.explain import explain
from components.launch_tfjob.backends import is_local
from components.launch_tfjob.masking import Mask
from components.launch_tfjob.record import AttemptEnd
from components.publish.champion import next_number, read_champion
from components.step import WHOLE_RUN, Failure, Step, local_failure, log_to_stdout, open_step
from storage.address import S3Address
from storage.errors import ObjectNotFoundError, StepError
from storage.retry import Patience

log = logging.getLogger(__name__)

_PATIENCE = Patience(seconds=15, silence=15)  # an exit task is not worth a longer wait
_SHORT_PATIENCE = Patience(seconds=1, silence=5)  # after a step that has just given up a store

CANCELLED = Failure(
    step=WHOLE_RUN,
    code=143,
    verdict="cancelled",
    message="The run was ended before it was done; no step recorded a failure."
    " To do: start it again; the prepared dataset is used again as it is.",
)


@dataclass(frozen=True)
class Ending:
    """How a run ended.

    Attributes:
        markdown: For people.
        failure: What ended it; None when it came to its verdict.
    """

    markdown: str
    failure: Failure | None


def run_as_exit_task(
    run_id: str, output_uri: str, storage_endpoint: str, storage_region: str, model_name: str
) -> str:
    """Say how a run ended, and never fail for a store that is away: that is then the answer.

    Args:
        run_id: The run.
        output_uri: As in the form.
        storage_endpoint: As in the form.
        storage_region: As in the form.
        model_name: As in the form.

    Returns:
        The report in Markdown.
    """
    log_to_stdout()
    left = Left() if is_local() else end_jobs(run_id)
    try:
        storage = (storage_endpoint, storage_region)
        step = open_step("finish", run_id, output_uri, *storage, patience=_patience())
        return run(step, model_name, left).markdown
    except StepError as error:
        log.warning("how the run ended cannot be read: %s", error)
        return Mask()(_unread(run_id, error, left) + explain(left.ends))


def _patience() -> Patience:
    """Return how long the store is waited for; preflight ends with an answer about it."""
    return _SHORT_PATIENCE if local_failure("preflight") else _PATIENCE


def run(step: Step, model_name: str, left: Left | None = None) -> Ending:
    """Read what the run left and say how it ended.

    A run that failed also gets `failure.md` beside `failure.json`, because KFP loses whatever a
    failed task had to show.

    Args:
        step: The context of the step.
        model_name: The model of the run.
        left: What the run had on the cluster when it ended; None without a cluster.

    Raises:
        StepError: The store cannot be read.
    """
    failure = _failure(step)
    verdict = _json(step, step.run.evaluation / "verdict.json")
    left = left or Left()
    if failure is None and not _is_done(step, model_name, verdict):
        failure = CANCELLED
        step.store.write(step.run.failure("json"), failure.to_bytes())
    if failure is None:
        log.info("the run is done: %s", "; ".join(verdict["reasons"]))
        return Ending(_done(step, model_name, verdict), None)
    markdown = Mask()(_failed(step, failure, left) + explain(_ends(step, left)))
    step.store.write(step.run.failure("md"), markdown.encode(), "text/markdown")
    log.info("the run failed in %s: see %s", failure.step, step.run.failure("md"))
    return Ending(markdown, failure)


def _is_done(step: Step, model_name: str, verdict: dict[str, Any] | None) -> bool:
    """Tell whether a run came to its end: publish may have been killed without a word of it."""
    if verdict is None or not verdict["blessed"]:
        return verdict is not None
    record = _json(step, step.layout.model(model_name).champion(next_number(verdict)))
    return record is not None and record["run_id"] == step.run_id


def _done(step: Step, model_name: str, verdict: dict[str, Any]) -> str:
    champion = read_champion(step.store, step.layout, model_name)
    lines = [
        f"# Run {step.run_id}: {'published' if verdict['blessed'] else 'not published'}",
        "",
        *(f"- {reason}" for reason in verdict["reasons"]),
        "",
        f"- champion of `{model_name}`: "
        + (f"version {champion.version}, `{champion.version_uri}`" if champion else "none yet"),
        f"- verdict and report: `{step.run.evaluation}`",
        f"- model of this run: `{step.run.output / 'model'}`",
    ]
    return "\n".join(lines) + "\n"


def _ends(step: Step, left: Left) -> list[AttemptEnd]:
    """Return what is known of every attempt: what its launcher recorded, else the cluster."""
    known = {end.attempt: end for end in left.ends}
    for number in step.store.numbers(step.run.attempts):
        try:
            data = step.store.read(step.run.attempts / f"{number:04d}.end.json")
            known[number] = AttemptEnd.from_bytes(data)
        except ObjectNotFoundError:
            continue
    return list(known.values())


def _failed(step: Step, failure: Failure, left: Left) -> str:
    lines = [
        f"# Run {step.run_id} failed in `{failure.step}`",
        "",
        f"**{failure.verdict}** (exit code {failure.code})",
        "",
        "```",
        failure.message,
        "```",
        "",
        "| what | where |",
        "|---|---|",
        f"| attempts of the training job | {len(step.store.numbers(step.run.attempts))} |",
        f"| newest stored checkpoint | {_newest_checkpoint(step)} |",
        f"| everything the run left | `{step.run.base}` |",
        *_on_cluster(left),
        "",
        "Nothing was published by this run.",
    ]
    return "\n".join(lines) + "\n"


def _unread(run_id: str, error: StepError, left: Left) -> str:
    """Return what can be said of a run whose store does not answer."""
    lines = [
        f"# Run {run_id}",
        "",
        "How it ended cannot be read from the store.",
        "",
        "```",
        str(error),
        "```",
        "",
    ]
    if known := _on_cluster(left):
        lines += ["| what | where |", "|---|---|", *known]
    return "\n".join(lines) + "\n"


def _on_cluster(left: Left) -> list[str]:
    """Return the rows of a table that say what was found and done on the cluster."""
    return [
        *([f"| ended on the cluster | {', '.join(left.cancelled)} |"] if left.cancelled else []),
        *([f"| the cluster was not asked | {left.trouble} |"] if left.trouble else []),
        *(["| a person terminated the run | yes |"] if left.terminated else []),
    ]


def _failure(step: Step) -> Failure | None:
    try:
        return Failure.from_bytes(step.store.read(step.run.failure("json")))
    except ObjectNotFoundError:
        return None


def _newest_checkpoint(step: Step) -> str:
    steps = step.store.numbers(step.run.checkpoints)
    return f"step {steps[-1]}" if steps else "none"


def _json(step: Step, address: S3Address) -> dict[str, Any] | None:
    try:
        return json.loads(step.store.read(address))
    except ObjectNotFoundError:
        return None
    except ValueError as error:
        raise StepError(f"{address} is not JSON: {error}") from error
