"""Finds the faults of the TFJobs in a file, and makes the safe corrections."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kfp_tfjob.jobs.tfjob import TFJOB
from kfp_tfjob.lint import document, ending, fields, pods, roles, scripts
from kfp_tfjob.lint.document import Document
from kfp_tfjob.lint.job import Job
from kfp_tfjob.lint.rule import Found, Rule, Severity
from kfp_tfjob.lint.schema import violations
from kfp_tfjob.storage.errors import ConfigurationError, Problem

# The table: every rule of these modules, in the order in which corrections are made.
RULES = tuple(
    rule
    for module in (fields, roles, pods, ending, scripts)
    for rule in vars(module).values()
    if isinstance(rule, Rule)
)
_COMMANDS = ("command", "args")
_PASSES = 20  # a correction may enable a different one, never the same one


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
        fixable: Whether `fix` corrects it.
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
    fixable: bool


@dataclass(frozen=True)
class Fixed:
    """A corrected file.

    Attributes:
        text: The file.
        done: The corrections, one sentence each.
        findings: The remaining faults of the corrected file.
    """

    text: str
    done: tuple[str, ...]
    findings: tuple[Finding, ...]


def lint(text: str, name: str = "the file") -> list[Finding]:
    """Return every fault of the TFJobs in a file.

    Args:
        text: YAML or JSON with any number of documents; only TFJobs are checked.
        name: The name of the file, for messages.

    Raises:
        ConfigurationError: It is not YAML, or has no TFJob.
    """
    return list(_findings(_read(text, name)))


def fix(text: str, name: str = "the file") -> Fixed:
    """Make the corrections that cannot change the intent.

    A document without corrections stays the same, byte for byte. A corrected one is rewritten
    without the comments between its lines.

    Args:
        text: As for `lint`.
        name: As for `lint`.

    Raises:
        ConfigurationError: As for `lint`.
    """
    documents = _read(text, name)
    done: list[str] = []
    changed = []
    for item in documents:
        before = len(done)
        for job in _jobs(item):
            done += [f"{job.name or TFJOB.name}: {what}" for what in _correct(item, job)]
        if len(done) > before:
            changed.append(item)
    corrected = document.dump(documents, changed)
    return Fixed(corrected, tuple(done), tuple(lint(corrected, name)))


def _read(text: str, name: str) -> list[Document]:
    documents = document.read(text, name)
    if not any(_jobs(item) for item in documents):
        raise ConfigurationError(
            Problem(
                f"{name} has no {TFJOB.name}",
                received=", ".join(_kind(item) for item in documents) or "nothing",
                expected=f"a document with kind: {TFJOB.name}",
                fix=f"name the file with the {TFJOB.name}",
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
        return [Job(body, (), item.scalars)]
    inner = body.get("items") if body.get("kind") == "List" else None
    return [
        Job(entry, ("items", i), item.scalars)
        for i, entry in enumerate(inner if isinstance(inner, list) else [])
        if isinstance(entry, dict) and _is_job(entry)
    ]


def _is_job(body: dict[str, Any]) -> bool:
    return str(body.get("kind")).lower() == TFJOB.name.lower()


def _findings(documents: list[Document]) -> Iterator[Finding]:
    for number, item in enumerate(documents, 1):
        for job in _jobs(item):
            for rule, found in _broken(item, job):
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
                    fixable=found.correct is not None,
                )


def _broken(item: Document, job: Job) -> Iterator[tuple[Rule, Found]]:
    """Yield each place that breaks a rule."""
    repeated = [path for path in item.repeated if path[: len(job.path)] == job.path]
    for path in repeated:
        yield _REPEATED, Found(path, f"{path[-1]} appears more than once")
    if _unreadable(job):
        yield from ((fields.wrong_type, found) for found in fields.wrong_type.find(job))
        return
    for rule in RULES:
        for found in rule.find(job):
            # Rewriting keeps one of the equal keys, but only the author knows which one is right.
            yield rule, Found(found.path, found.what) if repeated else found


def _correct(item: Document, job: Job) -> Iterator[str]:
    """Correct a job in its document, and yield each correction."""
    if item.repeated or _unreadable(job):
        return
    for _ in range(_PASSES):
        before = 0
        for rule in RULES:
            for found in list(rule.find(job)):
                if found.correct:
                    before += 1
                    yield f"{found.correct()} ({rule.name})"
        if not before:
            return


def _unreadable(job: Job) -> bool:
    """Tell whether the rules cannot read a job; they can read a command that is a text."""
    return any(
        item.structural and not (isinstance(item.value, str) and item.path[-1] in _COMMANDS)
        for item in violations(job.body, path=job.path)
    )


_REPEATED = Rule(
    "repeated-key",
    Severity.ERROR,
    "Only the last one counts, or the file is refused.",
    "keep one of them",
    lambda job: iter(()),
)
