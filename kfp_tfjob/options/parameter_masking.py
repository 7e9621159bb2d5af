"""Hides values with secret-looking names, so that no report, page or log shows them.

A parameter is the wrong place for a secret, because Kubeflow Pipelines prints parameters. If a user
puts one there anyway, our own output does not repeat it. Called wherever parameters are logged,
shown or stored.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from kfp_tfjob.common.escaping import MASK

_WORD_BREAK = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|[^A-Za-z0-9]+")
# A name with such a word is secret for any value.
_CERTAIN = {"secret", "secrets", "password", "passwd", "passphrase", "pwd", "credential"}
_CERTAIN |= {"credentials", "creds", "apikey", "dsn", "webhook"}
_CERTAIN_ENDS = ("password", "passwd", "secret")  # PGPASSWORD
_OF_VARIABLES = {"key", "keys", "pass", "pat", "tokens"}  # the last word: KAGGLE_KEY, DB_PASS
# A number with such a name is a size or an index: token_dim, pad_token.
_LIKELY = {"token", "auth", "bearer", "authorization"}
_KEYS = {"access", "account", "api", "auth", "encryption", "license", "master", "private"}
_KEYS |= {"service", "signing", "ssh", "storage", "subscription"}
# Names of objects and files, not secrets.
_NAMES = {"image_pull_secret", "secretName", "secret_name", "storage_secret"}
_NAMES |= {"GOOGLE_APPLICATION_CREDENTIALS"}
_PLACES = {"dir", "file", "folder", "path"}  # the last word
# A password or a token in a URL, under any name. $(NAME) is a variable, as Kubernetes writes it.
_LOGIN = re.compile(r"://[^/\s:@]*:(?!\$\()[^/\s@]+@|https?://(?!\$\()[^/\s:@]{16,}@")
# Variables of a replica that hold JSON.
_JSON = ("HYPERPARAMETERS", "TRAIN_OPTIONS")
Hide = Callable[[Any], Any]  # from a secret to its replacement


def looks_secret(name: str, value: Any = "text") -> bool:
    """Return whether a parameter with this name and value must be hidden.

    Args:
        name: As the user wrote it: `API_TOKEN`, `apiToken`, `db.password`.
        value: A number is hidden only if the name leaves no doubt. A boolean is never hidden, a URL
            with a password always.
    """
    if _has_login(value):
        return True
    words = [word.lower() for word in _WORD_BREAK.split(name) if word]
    if isinstance(value, bool) or value is None or value == "" or name in _NAMES:
        return False
    if words and words[-1] in _PLACES:
        return False
    if _CERTAIN & set(words) or any(word.endswith(_CERTAIN_ENDS) for word in words):
        return True
    is_variable = name.isupper() and not _OF_VARIABLES.isdisjoint(words[-1:])
    if is_variable or words[-2:] == ["connection", "string"]:
        return not isinstance(value, int | float)
    is_key = any(
        word in _KEYS and following == "key"
        for word, following in zip(words, words[1:], strict=False)
    )
    return (is_key or bool(_LIKELY & set(words))) and not isinstance(value, int | float)


def _mask(secret: Any) -> str:
    return MASK


def masked(value: Any, hide: Hide = _mask, _in_env: bool = False) -> Any:
    """Return a parameter, or a part of one, with secret-looking values replaced.

    In `env` a reference to a Secret, `{"secret": NAME, "key": KEY}`, is not a secret.

    Args:
        value: The parameter's value, or a part of it.
        hide: Called with each secret; returns its replacement.
        _in_env: Whether the value is the content of `env`.
    """
    if isinstance(value, Mapping):
        return {
            name: inner
            if _in_env and _is_reference(inner)
            else hide(inner)
            if looks_secret(str(name), inner)
            else masked(inner, hide, name == "env")
            for name, inner in value.items()
        }
    if isinstance(value, list | tuple):
        return [masked(element, hide) for element in value]
    return hide(value) if _has_login(value) else value


def masked_job(manifest: Any, hide: Hide = _mask) -> Any:
    """Return a TFJob, or a part of one, with secret-looking values replaced."""
    if isinstance(manifest, Mapping):
        name, value = manifest.get("name"), manifest.get("value")
        if isinstance(name, str) and isinstance(value, str):
            return {**manifest, "value": _masked_variable(name, value, hide)}
        if set(manifest) <= {"secretKeyRef", "secret", "optional", "secretName", "name", "key"}:
            return manifest  # the names of a Secret
        return {
            # Not `hide`: other strings may have the same value as, for example, a label.
            name: MASK
            if isinstance(inner, str) and looks_secret(name, inner)
            else masked_job(inner, hide)
            for name, inner in manifest.items()
        }
    if isinstance(manifest, list):
        return [masked_job(element, hide) for element in manifest]
    return manifest


def secrets_in(value: Any) -> list[str]:
    """Return the values that `masked` hides, as strings."""
    secrets: list[Any] = []
    masked(value, secrets.append)
    return list(_strings_in(secrets))


def secrets_in_job(manifest: Any) -> list[str]:
    """Return the values that `masked_job` hides in variables of a TFJob, or of a part of one."""
    secrets: list[Any] = []
    masked_job(manifest, secrets.append)
    return list(_strings_in(secrets))


def plain_secrets(values: Mapping[str, Any]) -> Iterator[str]:
    """Yield the paths of secrets in run parameters, which Kubeflow Pipelines would print."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from still_masked(masked(value), name)


def still_masked(value: Any, path: str) -> Iterator[str]:
    """Yield the paths of values that are the mask, because they were hidden when stored."""
    if value == MASK:
        yield path
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield from still_masked(inner, f"{path}.{name}")
    elif isinstance(value, list):
        for element in value:
            yield from still_masked(element, path)


def _masked_variable(name: str, value: str, hide: Hide) -> Any:
    if name not in _JSON:
        return hide(value) if looks_secret(name, value) else value
    # Kubernetes expands $(NAME), so a dollar is written as $$.
    content = json.loads(value.replace("$$", "$"))
    masked_content = masked(content, hide)
    if masked_content == content:
        return value
    return json.dumps(masked_content, sort_keys=True, ensure_ascii=False).replace("$", "$$")


def _has_login(value: Any) -> bool:
    return isinstance(value, str) and _LOGIN.search(value) is not None


def _is_reference(value: Any) -> bool:
    return isinstance(value, Mapping) and set(value) == {"secret", "key"}


def _strings_in(value: Any) -> Iterator[str]:
    """Yield the numbers and strings in a value as strings."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for element in value:
            yield from _strings_in(element)
    elif value is not None and not isinstance(value, bool):
        yield str(value)
