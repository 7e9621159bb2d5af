"""Parameters as KFP delivers them, cast and checked: every problem at once, each with its remedy.

KFP turns an int parameter into a float now and then, and gives dicts no schema at all. So each dict
parameter has a typed form, a subclass of Group, and `parse` is the one way into it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import pydantic

from kfp_tfjob.jobs.secret_values import MASK, looks_secret, masked
from kfp_tfjob.storage.errors import ConfigurationError, Problem
from kfp_tfjob.storage.words import did_you_mean, nearest


class Group(pydantic.BaseModel):
    """The typed form of a dict parameter: immutable, and closed to keys nobody knows."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)


Typed = TypeVar("Typed", bound=Group)


def parse(group: type[Typed], name: str, value: Mapping[str, Any]) -> Typed:
    """Return the typed form of a dict parameter.

    Args:
        group: The typed form.
        name: The parameter, for messages, for instance `train_options`.
        value: What KFP delivered.

    Raises:
        ConfigurationError: One problem for every key that is unknown or has a wrong value.
    """
    if not isinstance(value, Mapping):
        raise ConfigurationError(
            Problem(
                f"{name} is not a dict",
                received=repr(value),
                expected='a JSON object, for instance {"seed": 1}',
                fix=f"correct {name}",
                path=name,
            )
        )
    try:
        return group.model_validate(whole_numbers(value))
    except pydantic.ValidationError as error:
        raise ConfigurationError(*_problems(group, name, error)) from None


def unknown_key(name: str, key: str, known: Iterable[str]) -> Problem:
    """Describe a key that does not exist, with the one that was probably meant.

    Args:
        name: The parameter and the keys above; empty for a parameter itself.
        key: The key.
        known: Those that exist.
    """
    known = sorted(known)
    meant = nearest(key, known)
    return Problem(
        f"{name} has no key {key!r}" if name else f"there is no parameter {key!r}",
        received=key,
        expected=f"one of {', '.join(known)}",
        fix=did_you_mean(meant, f"remove {key!r}"),
        path=f"{name}.{key}".lstrip("."),
        suggestion=meant,
    )


def no_path(name: str, path: Path, expected: str) -> Problem:
    """Describe a path of this machine that is not there, with the one that was probably meant."""
    beside = [item.name for item in path.parent.glob("*")]
    near = nearest(path.name, beside)
    meant = str(path.with_name(near)) if near else ""
    return Problem(
        f"the path in {name} does not exist",
        received=f"{str(path)!r}, in {str(Path.cwd())!r}",
        expected=expected,
        fix=did_you_mean(meant, "correct the path; on a cluster it must be an s3:// address"),
        path=name,
        suggestion=meant,
    )


def inner_group(annotation: Any) -> type[Group] | None:
    """Return the group that a key of this type holds, if it is one or may be."""
    kinds = (annotation, *getattr(annotation, "__args__", ()))
    return next((k for k in kinds if isinstance(k, type) and issubclass(k, Group)), None)


def whole_numbers(value: Any) -> Any:
    """Undo what a JSON number goes through in KFP: 3.0 is 3 again, in dicts and lists too."""
    if isinstance(value, Mapping):
        return {str(key): whole_numbers(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [whole_numbers(item) for item in value]
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    return value


def _problems(group: type[Group], name: str, error: pydantic.ValidationError) -> Iterable[Problem]:
    for item in error.errors(include_url=False):
        path = [str(part) for part in item["loc"]]
        where = ".".join([name, *path])
        if item["type"] == "extra_forbidden":
            yield unknown_key(".".join([name, *path[:-1]]), path[-1], _keys(group, path[:-1]))
        else:
            yield Problem(
                f"{where} is not valid",
                received=MASK if any(map(looks_secret, path)) else repr(masked(item["input"])),
                expected=item["msg"].removeprefix("Value error, "),
                fix=f"correct {where}",
                path=where,
            )


def _keys(group: type[Group], path: list[str]) -> list[str]:
    """Return the keys of the group found by following `path` through nested groups."""
    for part in path:
        field = group.model_fields.get(part)
        inner = inner_group(field.annotation) if field else None
        if inner is None:
            break
        group = inner
    return list(group.model_fields)
