"""Asks a registry whether it has an image, without credentials, as a node without a Secret would.

Only the manifest is asked for, and nothing is downloaded. It follows the distribution API: a
registry that requires a token names the server that issues it, to everyone for a public image.
"""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import urlencode, urlsplit

_SECONDS = 4.0
_HUB = "registry-1.docker.io"
_KINDS = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
_PAIR = re.compile(r'(\w+)="([^"]*)"')


class Answer(StrEnum):
    """What a registry says of an image."""

    HAS = "has it"
    LACKS = "does not have it"
    LOGIN = "shows it only with credentials, or does not have it"
    AWAY = "does not answer from here"


@dataclass(frozen=True)
class Reference:
    """The name of an image in parts.

    Attributes:
        host: The registry.
        repository: The name in the registry.
        version: A tag or a digest.
    """

    host: str
    repository: str
    version: str

    @classmethod
    def parse(cls, image: str) -> Reference:
        """Read the name of an image as container runtimes do."""
        name, _, digest = image.partition("@")
        first, slash, rest = name.partition("/")
        if not slash or not (set(first) & set(".:") or first == "localhost"):
            first, rest = _HUB, name if slash else f"library/{name}"
        elif first == "docker.io":
            first = _HUB
        repository, _, tag = rest.partition(":")
        return cls(first, repository, digest or tag or "latest")


def ask(image: str, scheme: str = "https") -> Answer:
    """Ask the registry of an image for its manifest.

    Args:
        image: Its name.
        scheme: Of the registry.
    """
    at = Reference.parse(image)
    url = f"{scheme}://{at.host}/v2/{at.repository}/manifests/{at.version}"
    try:
        status, challenge = _head(url, "")
        if status == 401 and (token := _token(challenge)):
            status, _ = _head(url, token)
    except (OSError, ValueError):
        return Answer.AWAY
    if status == 200:
        return Answer.HAS
    if status == 404:
        return Answer.LACKS
    return Answer.LOGIN if status in (401, 403) else Answer.AWAY


def _head(url: str, token: str) -> tuple[int, str]:
    """Return the status, and how to log in."""
    headers = {"Accept": ", ".join(_KINDS)}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    request = urllib.request.Request(url, headers=headers, method="HEAD")
    try:
        with urllib.request.urlopen(request, timeout=_SECONDS) as reply:
            return reply.status, ""
    except urllib.error.HTTPError as error:
        return error.code, error.headers.get("WWW-Authenticate", "")


def _token(challenge: str) -> str:
    """Return a token for anyone; empty if there is none."""
    known = dict(_PAIR.findall(challenge))
    realm = known.get("realm", "")
    if not (challenge.lower().startswith("bearer ") and urlsplit(realm).scheme[:4] == "http"):
        return ""
    query = urlencode({name: known[name] for name in ("service", "scope") if name in known})
    try:
        with urllib.request.urlopen(f"{realm}?{query}", timeout=_SECONDS) as reply:
            found = json.load(reply)
    except urllib.error.HTTPError:
        return ""
    return str(found.get("token") or found.get("access_token") or "")
