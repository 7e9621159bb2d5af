"""The section of docs/failures.md that explains a problem, by the problem's stable name.

A message says what to do; the page has space for the background. Names are parts of addresses that
people save and send to each other, so a name is never changed or used for another problem.
`kfp-tfjob compile --docs-url` compiles the address of a team's own site into the pipeline. Called
wherever a failure is reported.
"""

import os
import re

SITE_VARIABLE = "KFP_TFJOB_DOCS_URL"
_LINE = re.compile(r"\n?^docs: \S*failures(?:\.md|/)#([\w-]+)\s*\Z", re.MULTILINE)


def address_of(name: str) -> str:
    """Return the address of a section: on the site, or else the file's path in the repository.

    Args:
        name: The name of a problem, or a verdict.
    """
    site = os.environ.get(SITE_VARIABLE, "").rstrip("/")
    return f"{site}/failures/#{name}" if site else f"docs/failures.md#{name}"


def address_line(name: str) -> str:
    """Return the line with the address of a section that ends a replica's last message."""
    return f"docs: {address_of(name)}"


def split_address(message: str) -> tuple[str, str]:
    """Return a message without the line of `address_line`, and the section's name in this line."""
    line = _LINE.search(message)
    return (message[: line.start()], line[1]) if line else (message, "")
