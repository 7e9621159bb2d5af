"""The fenced blocks of the documents, and the command lines in them.

A block of commands says where it runs: ```` ```sh {.local} ````. GitHub highlights `sh` and ignores
the rest; the site shows it.

    local       on a laptop after `make setup`: run by `make test`, if `.slow` by `make test-docs`
    cluster     with kubectl and a cluster with the training operator: run by `make test-cluster`
    kfp         with Kubeflow Pipelines: parsed, and run where KF_PIPELINES_ENDPOINT is set
    external    with something that no test has, for example a registry: parsed only
"""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
TAGS = ("local", "cluster", "kfp", "external")
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    *sorted((ROOT / "components").rglob("README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]

# What commands leave in a checkout, which those of a test must not find.
_LEFT = {".git", ".kfp-tfjob", "compiled", "digits.csv", "people.csv", "site"}
_FENCE = re.compile(r"^( *)(`{3,})([^\n`]*)\n(.*?)^\1\2 *$", re.MULTILINE | re.DOTALL)
_INFO = re.compile(r"(\w*)(?: \{((?: ?\.\w+)+)\})?")
_ENDS = {"|", "||", "&&", ";", "&", "(", ")", ">", ">>", "<"}


@dataclass(frozen=True)
class Block:
    path: Path
    line: int
    language: str
    classes: tuple[str, ...]
    text: str

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line}"

    def commands(self) -> Iterator[list[str]]:
        """Yield the words of every command of a shell block, without redirections."""
        joined = self.text.replace("\\\n", " ")
        joined = re.sub(r"<<'?(\w+)'?.*?^\1$", "", joined, flags=re.MULTILINE | re.DOTALL)
        for line in _lines(joined):
            lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;()<>")
            lexer.whitespace_split = True
            words: list[str] = []
            skip = False
            for word in lexer:
                if word in _ENDS or set(word) <= set("|&;()<>"):
                    if words and not word.startswith((">", "<")):
                        yield words
                        words = []
                    skip = word.startswith((">", "<"))
                elif skip:
                    skip = False
                else:
                    words.append(word)
            if words:
                yield words


def _lines(text: str) -> Iterator[str]:
    """Yield the lines of a script; a quoted text may span several."""
    found, quote = "", ""
    for character in text:
        if character == "\n" and not quote:
            yield found
            found = ""
            continue
        if character in "'\"" and quote in ("", character):
            quote = "" if quote else character
        found += character
    yield found


def blocks_of(path: Path) -> list[Block]:
    """Return the fenced blocks of a document.

    Raises:
        ValueError: The words after a fence are not a language and `{.tag}`.
    """
    text = path.read_text()
    found = []
    for match in _FENCE.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        info = _INFO.fullmatch(match[3].strip())
        if not info:
            raise ValueError(f"{path}:{line}: {match[3]!r} is not a language and {{.tag}}")
        classes = tuple(word.lstrip(".") for word in (info[2] or "").split())
        indent = len(match[1])
        body = "".join(row[indent:] for row in match[4].splitlines(keepends=True))
        found.append(Block(path, line, info[1], classes, body))
    return found


def pages_with(tag: str) -> dict[str, list[Block]]:
    """Return the blocks with a tag, by the documents that have some."""
    return {
        str(path.relative_to(ROOT)): found
        for path in DOCUMENTS
        if (found := [it for it in blocks_of(path) if tag in it.classes])
    }


def run(
    blocks: list[Block], folder: Path, seconds: float, *places: Path, **environment: str
) -> None:
    """Run blocks in an empty folder, which becomes one of links to the checkout.

    Only what hangs reaches `seconds`; `places` are more folders with programs.
    """
    for path in ROOT.iterdir():
        if path.name not in _LEFT:
            (folder / path.name).symlink_to(path)
    programs = map(str, (Path(sys.executable).parent, *places))
    done = subprocess.run(
        ["bash", "-c", script(blocks)],
        cwd=folder,
        env=os.environ | environment | {"PATH": os.pathsep.join([*programs, os.environ["PATH"]])},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=seconds,
    )
    print(done.stdout, done.stderr, sep="\n")
    assert done.returncode == 0


def script(blocks: list[Block]) -> str:
    """Return one shell script that runs blocks in turn and says which one it is at."""
    parts = ["set -euo pipefail"]
    for block in blocks:
        text = block.text
        if block.language == "python":
            text = f"python - <<'END OF PYTHON'\n{text}END OF PYTHON\n"
        parts.append(f"echo '--- {block}' >&2\n{text}")
    return "\n".join(parts)
