"""Reads YAML files, and keeps the line of every value."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import yaml

from kfp_tfjob.jobs.tfjob import TFJOB
from kfp_tfjob.storage.errors import ConfigurationError, Problem

Path = tuple[str | int, ...]


_FAST: type[yaml.SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_FAST):
    """Leaves dates as text, as Kubernetes does."""


_Loader.yaml_implicit_resolvers = {
    letter: [(tag, pattern) for tag, pattern in rules if tag != "tag:yaml.org,2002:timestamp"]
    for letter, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


@dataclass
class Document:
    """One document of a file.

    Attributes:
        body: Its value; anchors in the text become separate copies.
        lines: The line of every value in the file, from 1, by its path.
    """

    body: Any = None
    lines: dict[Path, int] = field(default_factory=dict)

    def line(self, path: Path) -> int:
        """Return the line of the value at `path`, or of its nearest parent."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)


def read(text: str, name: str = "the file") -> list[Document]:
    """Read a file with any number of documents.

    Args:
        text: The file.
        name: Its name, for messages.

    Raises:
        ConfigurationError: It is not YAML.
    """
    try:
        loader = _Loader(text)
        documents = []
        while loader.check_node():
            node = loader.get_node()
            assert node  # check_node has found one
            documents.append(_document(loader, node))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigurationError(
            Problem(
                f"{name} is not YAML",
                received=" ".join(str(error).split()),
                expected=f"one or more documents, one of them a {TFJOB.name}",
                fix="correct it, or check that it is the right file",
            )
        ) from None
    return documents


def show(path: Iterable[str | int]) -> str:
    """Return a path as people write it, for instance `spec.containers[0].name`."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        elif "." in part or "/" in part:
            text += f"['{part}']"
        else:
            text += f".{part}" if text else part
    return text or "the document"


def _document(loader: _Loader, node: yaml.Node) -> Document:
    document = Document()
    document.body = _value(loader, node, (), document)
    return document


def _value(loader: _Loader, node: yaml.Node, path: Path, document: Document) -> Any:
    document.lines[path] = node.start_mark.line + 1
    if isinstance(node, yaml.MappingNode):
        loader.flatten_mapping(node)
        value = {}
        for key_node, item in node.value:
            key = str(key_node.value)
            value[key] = _value(loader, item, (*path, key), document)
            document.lines[(*path, key)] = key_node.start_mark.line + 1
        return value
    if isinstance(node, yaml.SequenceNode):
        return [_value(loader, n, (*path, i), document) for i, n in enumerate(node.value)]
    return loader.construct_object(node)
