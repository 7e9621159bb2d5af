"""Renders findings as text for people and as JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from kfp_tfjob.lint.engine import Finding
from kfp_tfjob.lint.rule import Severity
from kfp_tfjob.storage import escaping
from kfp_tfjob.storage.formatting import counted


def as_text(findings: Sequence[Finding], name: str) -> str:
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


def as_json(findings: Sequence[Finding], name: str) -> str:
    """Return the findings as one JSON object.

    Args:
        findings: The findings of one file.
        name: The file.
    """
    record = {
        "file": name,
        "errors": errors(findings),
        "warnings": len(findings) - errors(findings),
        "findings": [asdict(item) for item in findings],
    }
    return json.dumps(record, indent=1, ensure_ascii=False)


def errors(findings: Sequence[Finding]) -> int:
    """Return how many of the findings are errors."""
    return sum(item.severity == Severity.ERROR for item in findings)
