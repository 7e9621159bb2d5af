"""Casts and checks parameters from KFP, and reports all problems at once, each with a fix.

KFP sometimes turns an int parameter into a float, and it gives dicts no schema. So each dict
parameter has a typed form, a subclass of Group, and only `parse` creates it. Called by preflight,
the steps and the command line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar

import pydantic

from kfp_tfjob.common.errors import ConfigurationError, Problem
from kfp_tfjob.common.formatting import SHOWN, choices, did_you_mean, nearest

from .parameter_masking import MASK, looks_secret, masked
from .removed import REMOVED
from .wording import expected

_PLACEHOLDER = "{{$."  # begins a placeholder of Kubeflow Pipelines
_SURROGATE = re.compile(r"[\ud800-\udfff]")


class Group(pydantic.BaseModel):
    """The typed form of a dict parameter: immutable, and closed to unknown keys.

    Attributes:
        former_keys: Today's names of keys by names that earlier versions had, which are still read.
    """

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)
    former_keys: ClassVar[Mapping[str, str]] = {}


class NotOneOfError(ValueError):
    """A validator's error about a name that does not exist.

    Args:
        received: The name.
        names: The names that exist.
    """

    def __init__(self, received: str, names: Iterable[str]) -> None:
        names = list(names)
        self.received, self.meant = received, nearest(received, names)
        super().__init__(f"one of {choices(names, self.meant, len(names))}")


Typed = TypeVar("Typed", bound=Group)


def _number_as_string(value: Any) -> Any:
    """Return a number as a string, because a form delivers a name such as 1960 as a number."""
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


Text = Annotated[str, pydantic.BeforeValidator(_number_as_string)]


def _reject_string(value: Any) -> Any:
    """Reject a string, which is a sequence too and would become a list of its characters."""
    if isinstance(value, str):
        raise ValueError(f'a list, for example ["{value}"]')
    return value


Texts = Annotated[tuple[Text, ...], pydantic.BeforeValidator(_reject_string)]


def option(default: Any, meaning: str, **checks: Any) -> Any:
    """Declare a key of a group: its default, its meaning and the checks of its value.

    Args:
        default: The default; `...` for a key that must be given.
        meaning: The meaning of the key in one or two sentences, with names in backticks.
        **checks: Arguments of pydantic.Field: ge, gt, le, lt, min_length, allow_inf_nan.
    """
    return pydantic.Field(default, description=meaning, **checks)


def parse(group: type[Typed], name: str, value: Mapping[str, Any]) -> Typed:
    """Return the typed form of a dict parameter.

    Args:
        group: The typed form.
        name: The parameter, for messages, for example `train_options`.
        value: The parameter as KFP delivered it.

    Raises:
        ConfigurationError: One problem for every key that is unknown or has an invalid value.
    """
    if not isinstance(value, Mapping):
        raise ConfigurationError(
            Problem(
                f"{name} is not a dict",
                received=repr(value),
                expected='a JSON object, for example {"KEY": "value"}',
                fix=f"write {name} as a JSON object",
                path=name,
                name="invalid-value",
            )
        )
    options = {
        _current_key(group, key, value): option for key, option in whole_numbers(value).items()
    }
    ConfigurationError.raise_if(bad_texts(name, options))
    try:
        return group.model_validate(options)
    except pydantic.ValidationError as error:
        raise ConfigurationError(*_problems(group, name, options, error)) from None


def _current_key(group: type[Group], key: str, given: Mapping[str, Any]) -> str:
    """Return a key's current name; if both are given, the former stays and counts as unknown."""
    current = group.former_keys.get(key, key)
    return key if current in given else current


def bad_texts(name: str, value: Any) -> Iterator[Problem]:
    """Yield a problem for each string that is not UTF-8 or holds a placeholder of KFP.

    Kubeflow Pipelines fills placeholders into the strings and dicts of a component. It does not do
    so for a pipeline that another pipeline loads, such as the compiled YAML of one step.

    Args:
        name: The parameter.
        value: Its value.
    """
    if isinstance(value, Mapping):
        problems = list(bad_texts(name, list(value)))  # the paths below cannot contain such keys
        for key, inner in () if problems else value.items():
            problems += bad_texts(f"{name}.{key}", inner)
        yield from problems
    elif isinstance(value, list | tuple):
        for element in value:
            yield from bad_texts(name, element)
    elif isinstance(value, str) and _SURROGATE.search(value):
        yield Problem(
            f"{name} contains half of a surrogate pair, which is not UTF-8",
            received=ascii(value),
            expected="no unpaired surrogate from \\ud800 to \\udfff",
            fix=f"correct {name}",
            path=name,
        )
    elif isinstance(value, str) and _PLACEHOLDER in value:
        yield Problem(
            f"Kubeflow Pipelines did not insert a value into {name}",
            received=value,
            expected="a string without a placeholder",
            fix="pass the whole value as one input, for example a dict that is a parameter of the"
            " pipeline or the output of a component; or use the Python component of the step with"
            " kfp_tfjob.pipelines.step_pod.with_store",
            path=name,
        )


def unknown_key(name: str, key: str, existing: Iterable[str]) -> Problem:
    """Return the problem of a key that does not exist, with the key that was probably meant.

    A key that no longer exists gets its remedy from `REMOVED`.

    Args:
        name: The parameter and the keys above; empty for a parameter itself.
        key: The key.
        existing: The keys that exist.
    """
    existing, path = sorted(existing), f"{name}.{key}".lstrip(".")
    if path in REMOVED:
        return Problem(
            f"{path} no longer exists",
            received=key,
            fix=REMOVED[path],
            path=path,
            name="unknown-key",
        )
    meant = nearest(key, existing)
    return Problem(
        f"{name} has no key {key!r}" if name else f"there is no parameter {key!r}",
        received=key,
        expected=f"one of {choices(existing, meant)}" + _explain_command(name, existing),
        fix=did_you_mean(meant, f"remove {key!r}"),
        path=path,
        suggestion=meant,
        name="unknown-key",
    )


def _explain_command(name: str, keys: Sequence[str]) -> str:
    """Return a clause with the command that lists the keys, if a message does not list them all."""
    command = f"kfp-tfjob explain {name}".rstrip()
    return f" (`{command}` lists them)" if len(keys) > SHOWN else ""


def no_path(name: str, path: Path, expected: str) -> Problem:
    """Return the problem of a path that does not exist, with the path that was probably meant.

    Args:
        name: The parameter that holds the path.
        path: The path.
        expected: The expected part of the message.
    """
    siblings = [sibling.name for sibling in path.parent.glob("*")]
    near = nearest(path.name, siblings)
    meant = str(path.with_name(near)) if near else ""
    return Problem(
        f"the path in {name} does not exist",
        received=f"{str(path)!r}, in {str(Path.cwd())!r}",
        expected=expected,
        fix=did_you_mean(meant, "correct the path; on a cluster it must be an s3:// address"),
        path=name,
        suggestion=meant,
        name="path-not-found",
    )


def inner_group(annotation: Any) -> type[Group] | None:
    """Return the group that a key with this annotation may hold; None for other types."""
    if isinstance(annotation, type) and issubclass(annotation, Group):
        return annotation
    return next(filter(None, map(inner_group, getattr(annotation, "__args__", ()))), None)


def whole_numbers(value: Any) -> Any:
    """Undo KFP's conversion of whole numbers: 3.0 becomes 3, even in dicts and lists."""
    if isinstance(value, Mapping):
        return {str(key): whole_numbers(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [whole_numbers(element) for element in value]
    # Above 2**53, a float may already differ from the number that the user typed.
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    return value


def _problems(
    group: type[Group], name: str, value: Any, error: pydantic.ValidationError
) -> Iterable[Problem]:
    schema = group.model_json_schema()
    reported: list[tuple[str | int, ...]] = []
    for detail in error.errors(include_url=False):
        path, received = _locate(detail["loc"], value)
        if detail["type"] == "missing":
            path, received = [*path, detail["loc"][-1]], "nothing"
        full_path, key = ".".join([name, *map(str, path)]), tuple(path)
        if any(key[: len(earlier)] == earlier[: len(key)] for earlier in reported):
            continue  # a key with several types has an error for each of them
        reported.append(key)
        if detail["type"] == "extra_forbidden":
            parents = [str(part) for part in path[:-1]]
            yield unknown_key(".".join([name, *parents]), str(path[-1]), _keys(group, parents))
            continue
        message = detail["msg"].removeprefix("Value error, ")
        cause = detail.get("ctx", {}).get("error")
        meant = getattr(cause, "meant", "")
        if isinstance(cause, NotOneOfError) and _is_key(value, path, cause.received):
            full_path, received = f"{full_path}.{cause.received}", cause.received
        # Only a validator of this project writes its message for users.
        own_message = detail["type"] == "value_error"
        yield Problem(
            f"{full_path} is not valid",
            received=MASK if any(looks_secret(str(part)) for part in path) else received,
            expected=message if own_message else expected(schema, path) or message,
            fix=did_you_mean(meant, f"correct {full_path}"),
            path=full_path,
            suggestion=meant,
            name="invalid-value",
        )


def _is_key(value: Any, path: Iterable[str | int], name: str) -> bool:
    """Return whether the value at `path` is an object with the key `name`."""
    for part in path:
        value = value[part]
    return isinstance(value, Mapping) and name in value


def _locate(location: tuple[str | int, ...], value: Any) -> tuple[list[str | int], str]:
    """Return the path of an error, and the value that was received there, as text.

    Args:
        location: From pydantic; after the path it may name the type that did not match.
        value: The parsed value.
    """
    path: list[str | int] = []
    for part, following in zip_longest(location, location[1:]):
        if isinstance(value, Mapping) and part in value:
            value = value[part]
        elif isinstance(value, list) and isinstance(part, int) and part < len(value):
            value = value[part]
        elif part == "[key]":
            return path, str(path[-1])  # the key itself is wrong
        elif isinstance(value, Mapping) and following in value:
            continue  # the name of the value's type, which pydantic adds for a union
        else:
            break
        path.append(part)
    return path, repr(masked(value))


def _keys(group: type[Group], path: list[str]) -> list[str]:
    """Return the keys of the innermost group to which `path` leads."""
    for part in path:
        field = group.model_fields.get(part)
        inner = inner_group(field.annotation) if field else None
        if inner is None:
            break
        group = inner
    return list(group.model_fields)
