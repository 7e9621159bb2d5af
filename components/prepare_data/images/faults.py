"""Collects the files that are no pictures to train on, and describes them for the user."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from kfp_tfjob.storage.errors import Example, Problem

MOST_EXAMPLES = 10
# The meaning of each rule, in the order of the counts in messages.
RULES = {
    "empty": "an empty file",
    "picture": "neither a JPEG nor a PNG",
    "truncated": "cut off",
    "broken": "damaged",
    "coding": "a JPEG that is neither baseline nor progressive with 8 bits",
    "pixels": "more pixels than data_options.pictures.max_megapixels allows",
    "bytes": "a file that is too large for a record",
    "channels": "four inks (CMYK), which cannot become one channel",
}


class PictureFault(NamedTuple):
    """Why one file is a bad row.

    Attributes:
        file: Its name below data_uri.
        rule: A key of RULES.
        value: What was found, as text.
    """

    file: str
    rule: str
    value: str


class PictureFaults:
    """The bad files of a source, in bounded memory.

    Attributes:
        rows: The number of bad files by rule.
        examples: Up to ten of them, with as many rules among them as possible.
    """

    def __init__(self) -> None:
        self.rows: Counter[str] = Counter()
        self.examples: list[PictureFault] = []

    @property
    def bad(self) -> int:
        """The number of bad files."""
        return self.rows.total()

    def add(self, faults: Sequence[PictureFault]) -> None:
        """Add faults."""
        self.rows.update(fault.rule for fault in faults)
        self.examples = _of_each([*self.examples, *faults])

    def to_plain(self) -> dict[str, Any]:
        """Return plain values, as JSON has them."""
        return {"rows": dict(self.rows), "examples": [list(fault) for fault in self.examples]}

    def merge(self, plain: dict[str, Any]) -> None:
        """Add the faults of `to_plain`."""
        self.rows.update(plain["rows"])
        found = [PictureFault(*fault) for fault in plain["examples"]]
        self.examples = _of_each([*self.examples, *found])

    def counts(self) -> dict[str, int]:
        """Return the bad files by rule, in the order of RULES."""
        return {rule: self.rows[rule] for rule in RULES if self.rows[rule]}

    def problems(self, seen: int) -> list[Problem]:
        """Return the counts, and up to ten bad files.

        Args:
            seen: The number of files, good or bad.
        """
        counts = ", ".join(f"{rule} {count:,}" for rule, count in self.counts().items())
        whole = Problem(
            f"{self.bad:,} of {seen:,} pictures are bad ({counts})",
            expected="JPEG or PNG files that end where their pictures end",
            fix="correct or remove them, or drop them with data_options.on_bad_row=drop",
        )
        examples = [
            Example(f"{fault.file}: {RULES[fault.rule]}", received=fault.value)
            for fault in self.examples
        ]
        return [whole, *examples]


def _of_each(faults: list[PictureFault]) -> list[PictureFault]:
    """Return ten faults, sorted: the first of each rule, then the second, and so on."""
    seen: Counter[str] = Counter()
    ranked = []
    for fault in sorted(faults):
        ranked.append((seen[fault.rule], fault))
        seen[fault.rule] += 1
    return sorted(fault for _, fault in sorted(ranked)[:MOST_EXAMPLES])
