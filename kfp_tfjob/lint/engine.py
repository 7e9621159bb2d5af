"""Finds the faults of the TFJobs in a file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from kfp_tfjob.jobs.objects import Object
from kfp_tfjob.jobs.tfjob import TFJOB
from kfp_tfjob.lint import document, ending, fields, pods, roles, scripts
from kfp_tfjob.lint.document import Document
from kfp_tfjob.lint.job import Job
from kfp_tfjob.lint.rule import Rule, Severity
from kfp_tfjob.storage.errors import ConfigurationError, Problem

# The table: every rule of these modules.
RULES = tuple(
    rule
    for module in (fields, roles, pods, ending, scripts)
    for rule in vars(module).values()
    if isinstance(rule, Rule)
)


@dataclass(frozen=True)
class Finding:
    """One fault and its place.

    Attributes:
        job: The name of the TFJob.
        document: The number of its document in the file, from 1.
        line: The line in the file, from 1.
        path: The path in the document.
        rule: The name of the rule.
        severity: `error` or `warning`.
        what: The fault.
        reason: The effect of the fault and its cause.
        fix: The remedy.
    """

    job: str
    document: int
    line: int
    path: str
    rule: str
    severity: Severity
    what: str
    reason: str
    fix: str


def lint(text: str, name: str = "the file") -> list[Finding]:
    """Return every fault of the TFJobs in a file.

    Args:
        text: YAML or JSON with any number of documents; only TFJobs are checked.
        name: The name of the file, for messages.

    Raises:
        ConfigurationError: It is not YAML, or has no TFJob.
    """
    return list(_findings(_read(text, name)))


def _read(text: str, name: str) -> list[Document]:
    documents = document.read(text, name)
    if not any(_jobs(item) for item in documents):
        raise ConfigurationError(
            Problem(
                f"{name} has no {TFJOB.name}",
                received=", ".join(_kind(item) for item in documents) or "nothing",
                expected=f"a document with kind: {TFJOB.name}",
                fix=f"pass the file with the {TFJOB.name}",
            )
        )
    return documents


def _kind(item: Document) -> str:
    kind = item.body.get("kind") if isinstance(item.body, dict) else None
    return str(kind or "a document without a kind")


def _jobs(item: Document) -> list[Job]:
    """Return the TFJobs of a document: itself, or those of a List."""
    body = item.body
    if not isinstance(body, dict):
        return []
    if _is_job(body):
        return [Job(body, ())]
    inner = body.get("items") if body.get("kind") == "List" else None
    return [
        Job(entry, ("items", i))
        for i, entry in enumerate(inner if isinstance(inner, list) else [])
        if isinstance(entry, dict) and _is_job(entry)
    ]


def _is_job(body: Object) -> bool:
    return str(body.get("kind")).lower() == TFJOB.name.lower()


def _findings(documents: list[Document]) -> Iterator[Finding]:
    for number, item in enumerate(documents, 1):
        for job, rule in product(_jobs(item), RULES):
            for found in rule.find(job):
                yield Finding(
                    job=job.name,
                    document=number,
                    line=item.line(found.path),
                    path=document.show(found.path),
                    rule=rule.name,
                    severity=rule.severity,
                    what=found.what,
                    reason=rule.reason,
                    fix=rule.fix,
                )
