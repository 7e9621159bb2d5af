"""The site builds without a warning and loads nothing from elsewhere; every link is alive."""

import re
import tomllib
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from images.build import IMAGES
from kfp_tfjob.components import STEPS
from tests.docs.blocks import DOCUMENTS, ROOT
from tests.environments import run_python

# Of what the theme links to, not loads.
LOADED = re.compile(
    r"<(?:script|link|img|iframe|source)\b[^>]*?\b(?:src|href)=\"(https?:|//)[^>]*>"
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = run_python("-m", "mkdocs", "build", "--strict", "--site-dir", folder, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return folder


def test_it_builds_without_a_warning(site: Path) -> None:
    assert (site / "index.html").exists()
    pages = {path.stem for path in (ROOT / "docs").rglob("*.md")} | {"components", *STEPS}
    assert pages <= {path.parent.name for path in site.rglob("*/index.html")}


def test_a_component_is_a_page_whose_links_are_those_of_the_site(site: Path) -> None:
    page = (site / "components/launch_tfjob/index.html").read_text()
    for link in ("../", "../prepare_data/", "../../parameters/#pod"):
        assert f'href="{link}"' in page, link
    assert "README.md" not in page
    bring_a_model = (site / "own-model/index.html").read_text()
    assert 'href="../components/prepare_data/#images"' in bring_a_model


def test_the_diagram_of_a_run_names_every_step() -> None:
    named = re.findall(r'class="name"[^>]*>([\w/]+)<', (ROOT / "docs/run.svg").read_text())
    assert {*named} >= {*STEPS} - {"finish"}
    assert "its exit task, finish," in (ROOT / "docs/run.svg").read_text()


def test_the_glossary_is_in_order_and_entry_pages_link_to_it() -> None:
    terms = re.findall(r"^## (.+)$", (ROOT / "docs/glossary.md").read_text(), re.MULTILINE)
    assert terms == sorted(terms, key=str.casefold)
    for page in ("README.md", "docs/users.md", "docs/first-run.md", "docs/tutorial.md"):
        assert "glossary.md#" in (ROOT / page).read_text(), page


def test_the_page_of_installation_lists_every_extra_and_image() -> None:
    page = (ROOT / "docs/install.md").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    rows = re.findall(r"^\| `([\w-]+)` \|", page, re.MULTILINE)
    images = {re.findall(r"kfp-tfjob-\w+", image.reference("r"))[0] for image in IMAGES.values()}
    assert {*rows} == {*project["optional-dependencies"]} | images


def test_it_loads_nothing_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        assert not LOADED.findall(page.read_text()), page.name
    for sheet in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(?:https?:)?//", sheet.read_text()), sheet.name


@pytest.mark.parametrize(
    "document",
    [*DOCUMENTS, ROOT / "CHANGELOG.md"],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_links_of_files_lead_somewhere(document: Path) -> None:
    """On GitHub, where mkdocs does not look."""
    for target in links(document):
        if re.match(r"https?:|mailto:", target):
            continue
        name, _, anchor = target.partition("#")
        path = (document.parent / name).resolve() if name else document
        assert path.exists(), f"{target}: there is no such file"
        if anchor and path.suffix == ".md":
            assert anchor in anchors(path), f"{target}: there is no such heading"


def links(document: Path) -> list[str]:
    found = []
    for token in MarkdownIt().enable("table").parse(document.read_text()):
        for child in token.children or ():
            if child.type in ("link_open", "image"):
                found.append(str(child.attrs.get("href") or child.attrs.get("src")))
    return found


def anchors(path: Path) -> set[str]:
    """Return the anchors of the headings, as GitHub and mkdocs name them."""
    tokens = MarkdownIt().parse(path.read_text())
    titles = [tokens[i + 1].content for i, it in enumerate(tokens) if it.type == "heading_open"]
    return {slug(title) for title in titles}


def slug(title: str) -> str:
    words = re.sub(r"[^\w\- ]", "", title.replace("`", "").lower())
    return words.replace(" ", "-")
