"""Add README.md, CONTRIBUTING.md and CHANGELOG.md to the site, so that each text exists once.

Their links are relative to the root of the repository; the site has all pages in one folder.
"""

import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

_ROOT = Path(__file__).parents[1]
_NAMES = {"README": "index", "CONTRIBUTING": "contributing", "CHANGELOG": "changelog"}
_LINK = re.compile(rf"\]\((?:\.\./)*({'|'.join(_NAMES)})\.md\b")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages; mkdocs calls it before it reads the navigation."""
    for name, page in _NAMES.items():
        text = (_ROOT / f"{name}.md").read_text().replace("](docs/", "](")
        files.append(File.generated(config, f"{page}.md", content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Point links to these files at their pages."""
    return _LINK.sub(lambda found: f"]({_NAMES[found[1]]}.md", markdown)
