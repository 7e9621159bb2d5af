"""Applies the remedies of problems, as their texts and the command line spell them.

A site is a place in the code that makes a Problem: `file:function`, and the number of the Problem
in this function if it makes several.
"""

import ast
import json
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from kfp_tfjob.common.errors import Problem, StepError
from kfp_tfjob.components.preflight.parameters import defaults
from kfp_tfjob.options.parameters import PARAMETERS
from kfp_tfjob.pipelines import hints
from kfp_tfjob.pipelines.commands import parameters
from tests.conftest import PACKAGES

ROOT = Path(__file__).parents[2]
GOOD = {"data_uri": "d.csv", "data_label": "y", "model_name": "m", "output_uri": "s3://bucket/p"}
_PARTS = ("what", "received", "expected", "fix", "path", "suggestion")
# A remedy with a value to set, or a helper that makes one.
_VALUE = re.compile(
    r"(?:data_options|train_options|gate|pod)[\w.]*=|--set |\bto \"|number_fix|named_formats"
    r"|\bsetting\("
)
_SETTING = re.compile(
    r"(?<![\w.])((?:data_options|train_options|gate|pod)(?:\.[^\s=.,]+)*)(?:=| to )(?=[\[{\"a-z])"
)

Values = dict[str, Any]
World = Callable[[Any], list[Problem]]
Apply = Callable[[Any, Problem], Any]


@dataclass(frozen=True)
class Site:
    """A place in the code that makes a Problem.

    Attributes:
        name: For example `options/parse:unknown_key[1]`.
        parts: The source of each part of the Problem.
        pattern: Matches what is wrong.
    """

    name: str
    parts: Mapping[str, str] = field(hash=False)
    pattern: re.Pattern[str] = field(hash=False)

    @property
    def is_wrapper(self) -> bool:
        """Whether it has only what another error has said."""
        return self.parts.keys() <= {"what", "received", "expected"} and "fix" not in self.parts

    @property
    def names_a_value(self) -> bool:
        """Whether its remedy names an option, or a value to set."""
        remedy = self.parts.get("fix", "")
        return bool({"path", "suggestion"} & self.parts.keys() or _VALUE.search(remedy))


@cache
def sites() -> dict[str, Site]:
    """Return every place in the product that makes a Problem, by its name."""
    found = {}
    for package in PACKAGES:
        folder = (ROOT / "kfp_tfjob" / package).resolve()
        for path in sorted(folder.rglob("*.py")):
            name = f"{package}/{path.relative_to(folder).with_suffix('').as_posix()}"
            for site in _sites(name, ast.parse(path.read_bytes())):
                found[site.name] = site
    return found


def _sites(file: str, tree: ast.Module) -> Iterator[Site]:
    inside = [it for it in ast.walk(tree) if isinstance(it, ast.FunctionDef | ast.AsyncFunctionDef)]
    calls = [it for it in ast.walk(tree) if isinstance(it, ast.Call) and _is_problem(it)]
    owners = {}
    for call in sorted(calls, key=lambda it: (it.lineno, it.col_offset)):
        around = [it for it in inside if it.lineno <= call.lineno <= (it.end_lineno or 0)]
        owners[call] = max(around, key=lambda it: it.lineno).name if around else "module"
    counts, seen = Counter(owners.values()), Counter[str]()
    for call, owner in owners.items():
        number = f"[{seen[owner]}]" if counts[owner] > 1 else ""
        seen[owner] += 1
        parts = dict(zip(_PARTS, call.args, strict=False))
        parts |= {it.arg: it.value for it in call.keywords if it.arg}
        texts = {key: ast.unparse(it) for key, it in parts.items()}
        pattern = re.compile(_regex(parts["what"]), re.DOTALL)
        yield Site(f"{file}:{owner}{number}", texts, pattern)


def _is_problem(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Name) and call.func.id == "Problem"


def _regex(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        return re.escape(str(node.value))
    if isinstance(node, ast.JoinedStr):
        return "".join(map(_regex, node.values))
    if isinstance(node, ast.BinOp):
        return _regex(node.left) + _regex(node.right)
    if isinstance(node, ast.IfExp):
        return f"(?:{_regex(node.body)}|{_regex(node.orelse)})"
    return ".*"


@dataclass(frozen=True)
class Case:
    """An input with a problem, and how its remedy is applied.

    Attributes:
        site: What makes the problem.
        world: Returns the problems of an input.
        given: The input.
        apply: Returns the input with the remedy.
        label: Distinguishes cases of one site.
        then: Whether an input is what the remedy should lead to; None for any without the problem.
    """

    site: str
    world: World
    given: Any
    apply: Apply
    label: str = ""
    then: Callable[[Any], bool] | None = None

    def __str__(self) -> str:
        return f"{self.site} {self.label}".strip()

    def prove(self) -> None:
        """Apply the remedy, and check that the problem is gone."""
        site = sites()[self.site]
        found = self.world(deepcopy(self.given))
        matches = [it for it in found if site.pattern.fullmatch(it.what) and _is_of(site, it)]
        assert matches, f"no such problem among {list(map(str, found))}"
        problem = matches[0]
        assert problem.fix
        changed = self.apply(deepcopy(self.given), problem)
        assert changed != self.given, "the remedy changes nothing"
        assert self.then is None or self.then(changed), changed
        left = [it.what for it in self.world(deepcopy(changed))]
        assert not set(left) - {it.what for it in found if it.what != problem.what}, left


def _is_of(site: Site, problem: Problem) -> bool:
    """Return whether a problem has exactly the parts that the site gives it."""
    return all(name in site.parts or not getattr(problem, name) for name in ("path", "suggestion"))


def problems_of(call: Callable[[], object]) -> list[Problem]:
    """Return the problems that a call raises; none if it succeeds."""
    try:
        call()
    except StepError as error:
        return error.as_problems
    return []


def values(**changed: Any) -> Values:
    """Return all run parameters, good ones besides those that are given."""
    return defaults() | GOOD | changed


def typed(value: Any = None) -> Apply:
    """Type what `kfp-tfjob` says: the suggestion, or a right value in place of VALUE."""

    def apply(given: Values, problem: Problem) -> Values:
        option = hints._option(problem)
        assert option, f"nothing to type for {problem.path}"
        flag, setting = shlex.split(option)
        if flag == "--set":
            name, _, shown = setting.partition("=")
        else:
            shown = setting
            name = next(key for key, it in PARAMETERS.items() if it.option and it.option[0] == flag)
        text = shown if value is None else value if isinstance(value, str) else json.dumps(value)
        assert "VALUE" not in text, "the remedy needs a value"
        new = deepcopy(given)
        if problem.is_misnamed:
            new = without(new, problem.path)
        elif name in PARAMETERS:
            new[name] = defaults()[name]
        parameters._apply(new, [(f"{name}={text}", "--set")])
        return new

    return apply


def removed(given: Values, problem: Problem) -> Values:
    """Remove the key of the problem."""
    return without(given, problem.path)


def without(given: Values, path: str) -> Values:
    """Return the parameters without a key, whose name may have points."""
    new = deepcopy(given)
    inner, keys = new, path.split(".")
    while len(keys) > 1 and ".".join(keys) not in inner:
        inner = inner[keys.pop(0)]
    del inner[".".join(keys)]
    return new


def literal(number: int = 0, name: str = "") -> Apply:
    """Set what the remedy spells out: the number-th such setting of an option, or of `name`."""

    def apply(given: Values, problem: Problem) -> Values:
        found = [it for it in _settings(problem.fix) if name in it[0]]
        assert found, f"no setting in {problem.fix!r}"
        path, value = found[number]
        new = deepcopy(given)
        *above, last = path.split(".")
        inner = new
        for key in above:
            inner[key] = dict(inner.get(key) or {})
            inner = inner[key]
        before = inner.get(last)
        if isinstance(value, dict) and isinstance(before, dict):
            value = before | value
        inner[last] = value
        return new

    return apply


def _settings(fix: str) -> list[tuple[str, Any]]:
    """Return the settings that a remedy spells out: JSON, or a word."""
    found = []
    for match in _SETTING.finditer(fix):
        rest = fix[match.end() :]
        if rest[0] in '[{"':
            found.append((match[1], json.JSONDecoder().raw_decode(rest)[0]))
        else:
            found.append((match[1], re.match(r"\w+", rest)[0]))  # type: ignore[index]
    return found


def put(path: str, value: Any) -> Apply:
    """Set a value that the remedy describes and cannot know."""

    def apply(given: Values, problem: Problem) -> Values:
        new = deepcopy(given)
        *above, last = path.split(".")
        inner = new
        for key in above:
            inner[key] = dict(inner.get(key) or {})
            inner = inner[key]
        inner[last] = value
        return new

    return apply
