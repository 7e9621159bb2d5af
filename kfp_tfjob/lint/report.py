"""Renders findings as text."""

from __future__ import annotations

from collections.abc import Sequence

from kfp_tfjob.lint.engine import Finding
from kfp_tfjob.lint.rule import Severity
from kfp_tfjob.storage import escaping
from kfp_tfjob.storage.formatting import counted


def render(findings: Sequence[Finding], name: str) -> str:
    """Return the findings by rule, errors first, and their number.

    Args:
        findings: The findings of one file.
        name: The file.
    """
    rules: dict[str, list[Finding]] = {}
    for item in sorted(findings, key=lambda finding: (finding.severity, finding.line)):
        rules.setdefault(item.rule, []).append(item)
    lines = []
    for found in rules.values():
        lines += [
            f"{name}:{item.line}: {item.severity} {item.rule}: {item.what} ({item.path})"
            for item in found
        ]
        lines += [f"    {found[0].reason}", f"    Fix: {found[0].fix}."]
    return "\n".join(escaping.line(said) for said in [*lines, summary(findings, name)])


def summary(findings: Sequence[Finding], name: str) -> str:
    """Return one line with the number of findings."""
    bad, total = errors(findings), len(findings)
    if not findings:
        return f"{name}: no problems found"
    return f"{name}: {counted(bad, 'error')}, {counted(total - bad, 'warning')}"


def errors(findings: Sequence[Finding]) -> int:
    """Return how many of the findings are errors."""
    return sum(item.severity == Severity.ERROR for item in findings)
