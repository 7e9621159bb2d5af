"""What is started in each image, and which modules of the project and of others it can load."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
_STEPS = ("preflight", "prepare_data", "launch_tfjob", "sync_output", "finish")
# What is started with each extra alone: the component of a step, or a program `python -m`.
STEPS = {"tools": _STEPS, "trainer": ("evaluate", "publish")}
PROGRAMS = {
    "tools": ("uploader.__main__", "components.launch_tfjob.setup.__main__"),
    "trainer": ("trainer.__main__",),
    "serve": ("serving.server", "pipelines.commands.serve"),
    "local": ("pipelines.__main__", "pipelines.local.pipeline_process"),
}

# What is missing by intent; serving/server.py and pipelines/local/embedded_store.py report it: the
# server in an environment of `local`, and the embedded store beside the server.
BESIDE = {
    "tools": {"tensorflow"},  # only the training and the exported model call these functions
    "local": {"kserve", "fastapi", "prometheus_client", "starlette", "h11", "uvicorn"},
    "serve": {"swift", "eventlet"},
    "trainer": {"kubeflow"},  # evaluate and publish create no job
}


def entry_points(extra: str) -> list[str]:
    steps = [f"components.{name}.component" for name in STEPS.get(extra, ())]
    return [f"kfp_tfjob.{name}" for name in (*steps, *PROGRAMS[extra])]


def reachable(module: str) -> tuple[set[str], dict[str, str]]:
    """Follow every import, lazy ones too.

    Returns:
        The modules of the project; the top-level packages of others, and who imports each.
    """
    ours: set[str] = set()
    others: dict[str, str] = {}
    waiting = [(module, module)]
    while waiting:
        name, by = waiting.pop()
        top = name.partition(".")[0]
        if top != "kfp_tfjob":
            if top not in sys.stdlib_module_names:
                others.setdefault(top, by)
        elif name not in ours and (path := _source(name)):
            ours.add(name)
            parts = name.split(".")
            waiting += [(".".join(parts[:at]), name) for at in range(1, len(parts))]
            if name != "kfp_tfjob":  # its Client loads only for a user who asks for it
                waiting += [(found, name) for found in _imports(path)]
    return ours, others


def _source(module: str) -> Path | None:
    path = ROOT.joinpath(*module.split("."))
    found = (path / "__init__.py", path.with_suffix(".py"))
    return next((file for file in found if file.is_file()), None)


@cache
def _imports(path: Path) -> tuple[str, ...]:
    return tuple(_found(path))


def _found(path: Path) -> Iterator[str]:
    """Yield what a file imports; `from a import b` may mean the module a.b."""
    waiting: list[ast.AST] = [ast.parse(path.read_text())]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            waiting += node.orelse
            continue
        if isinstance(node, ast.FunctionDef) and node.name == "__getattr__":
            continue  # `kfp_tfjob.Client` loads only when it is asked for
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        waiting += ast.iter_child_nodes(node)
