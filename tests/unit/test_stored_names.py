"""The names of stored things are written in storage/layout.py, and nowhere else."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from kfp_tfjob.storage import layout
from kfp_tfjob.storage.address import S3Address

SOURCES = Path(__file__).parents[2] / "kfp_tfjob"
PACKAGES = "pipelines serving components judging trainer features user_code options".split()
PACKAGES += "cluster pages jobs registry uploader storage common".split()
# Found wherever they stand alone or in a path; the others are words that are used for more.
FILES = re.compile(
    r"(^|/)(\.uploader|manifest\.json|schema\.json|statistics\.json|failure\.(json|md)|verdict(-2)?\.json|lost-race\.json"
    r"|report\.html|model\.keras|saved_model\.pb|progress\.jsonl|completion\.json|checkpoint\.json"
    r"|request\.json|variables\.bin|flush-request\.json|flush-reply\.json|state\.json"
    r"|identity\.json|claim\.json|champion\.json)$|\.end\.json$|-uploader-"
)
# Labels and folders of a pod, pages of the UI, examples in messages, variables of a model, APIs.
NO_NAMES = (
    "kfp-tfjob/",
    "/kfp-tfjob/",
    "s3://BUCKET/",
    "model/{}",
    "{}/#/",
    "/v1/models/",
    "/v2/models/",
    "/apis/v2beta1/",
)
FOLDERS = set(
    "datasets runs models attempts code output evaluation model checkpoints logs versions"
    " champions pruned held serving".split()
)


def literals(tree: ast.AST) -> Iterator[tuple[ast.AST, str, bool]]:
    """Yield every text, docstrings aside, with whether it is joined to a path by `/`."""
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    inside = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr)
        for part in ast.walk(node)
        if isinstance(part, ast.Constant)
    }
    joined = {
        id(node.right)
        for node in ast.walk(tree)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = [str(it.value) if isinstance(it, ast.Constant) else "{}" for it in node.values]
            yield node, "".join(parts), id(node) in joined
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            if id(node) not in docs | inside:
                yield node, node.value, id(node) in joined


def names(text: str, joined: bool) -> bool:
    """Tell whether a text is the name of something stored; a message has spaces."""
    if re.search(r"\s", text) or text.startswith(NO_NAMES):
        return False
    parts = text.split("/")
    return bool(FILES.search(text)) or ((joined or len(parts) > 1) and bool(FOLDERS & set(parts)))


def test_only_the_layout_knows_the_names():
    found = [
        f"{path.relative_to(SOURCES)}:{node.lineno}: {text}"
        for package in PACKAGES
        for path in sorted((SOURCES / package).rglob("*.py"))
        if path != SOURCES / "storage/layout.py"
        for node, text, joined in literals(ast.parse(path.read_text()))
        if names(text, joined)
    ]
    assert not found, "\n".join(found)


def test_the_names_of_the_records_of_an_attempt_are_read_back():
    run = layout.RunLayout(S3Address("b", "runs/r"))
    assert run.attempt(7).key == "runs/r/attempts/0007.json"
    assert run.attempt_end(7).key == "runs/r/attempts/0007.end.json"
    assert run.uploader(7, 2).key == "runs/r/attempts/0007-uploader-02.json"
    assert layout.attempt_record(run.attempt(7).name) == (7, 0)
    assert layout.attempt_record(run.uploader(12345, 2).name) == (12345, 2)
    assert layout.attempt_record(run.attempt_end(7).name) is None
