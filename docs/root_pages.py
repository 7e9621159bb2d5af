"""Add Markdown files outside docs/ to the site, so that each text exists once.

GitHub shows README.md, CONTRIBUTING.md, CHANGELOG.md and SECURITY.md at the root, and the README.md
of each component beside its code. Their links lead to files, so that they also work there; the site
has its pages elsewhere. The notebook becomes a page with its text and its code.
"""

import json
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

_ROOT = Path(__file__).parents[1]
# The page of each file, by its path in the repository.
_PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
    "components/README.md": "components/index.md",
    "examples/notebook.ipynb": "notebook.md",
} | {
    f"components/{path.parent.name}/README.md": f"components/{path.parent.name}.md"
    for path in (_ROOT / "components").glob("*/README.md")
}
_FILES = {page: file for file, page in _PAGES.items()}
_LINK = re.compile(r"\]\(([^()#:\s]+)(?=[#)])")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages; mkdocs calls it before it reads the navigation."""
    for file, page in _PAGES.items():
        content = (_ROOT / file).read_text()
        if file.endswith(".ipynb"):
            content = _markdown(content)
        files.append(File.generated(config, page, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Point links to files at their pages."""
    here = page.file.src_uri
    folder = posixpath.dirname(_FILES.get(here, f"docs/{here}"))
    site_folder = posixpath.dirname(here) or "."

    def on_site(link: re.Match[str]) -> str:
        file = posixpath.normpath(posixpath.join(folder, link[1]))
        target = _PAGES.get(file, file.removeprefix("docs/"))
        return f"]({posixpath.relpath(target, site_folder)}"

    return _LINK.sub(on_site, markdown)


def _markdown(notebook: str) -> str:
    """Return a notebook's cells as Markdown; it is stored without outputs."""
    cells = json.loads(notebook)["cells"]
    sources = [(cell["cell_type"], "".join(cell["source"])) for cell in cells]
    return "\n\n".join(
        f"```python\n{source}\n```" if kind == "code" else source for kind, source in sources
    )
