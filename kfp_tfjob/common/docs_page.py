"""The section of docs/failures.md that explains a problem, by the problem's stable name.

A message says what to do; the page has space for the background. Names are parts of addresses that
people save and send to each other, so a name is never changed or used for another problem.
`kfp-tfjob compile --docs-url` compiles the address of a team's own site into the pipeline.
"""

import os

SITE_VARIABLE = "KFP_TFJOB_DOCS_URL"


def address_of(name: str) -> str:
    """Return the address of a section: on the site, or else the file's path in the repository.

    Args:
        name: The name of a problem, or a verdict.
    """
    site = os.environ.get(SITE_VARIABLE, "").rstrip("/")
    return f"{site}/failures/#{name}" if site else f"docs/failures.md#{name}"
