"""The table at the end of `make fuzz`: how many examples each target had, and what was found."""

from __future__ import annotations

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    rows = [
        value
        for outcome in ("passed", "failed")
        for test in terminalreporter.stats.get(outcome, [])
        for key, value in getattr(test, "user_properties", [])
        if key == "fuzz"
    ]
    if not rows:
        return
    terminalreporter.section("fuzz")
    for name, examples, count, seconds, found in sorted(rows):
        terminalreporter.line(
            f"{name:<10}{examples:>9,} examples, {examples / seconds:>7,.0f} a second:"
            f" {count.get('accepted', 0):,} accepted, {count.get('refused', 0):,} refused,"
            f" {len(found)} found"
        )
        for one in found:
            terminalreporter.line(f"    {one}")
