"""Sends one JSON document to a webhook, and reads only the status of the response.

The address is a secret, because anyone who has it can write into the channel behind it. So it is a
key of the Secret that storage_secret names, or a variable of a local run, and no message contains
it. A server that is slow, or sends an endless response, must not delay the end of a step. So a
thread sends the document, and the caller stops waiting after a few seconds. Called by notify.py.
"""

from __future__ import annotations

import http.client
import json
import logging
import os
import re
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import urlsplit

from kfp_tfjob.common.errors import ConfigurationError, Problem
from kfp_tfjob.jobs.log_masking import hide
from kfp_tfjob.storage.credentials import SecretVolume
from kfp_tfjob.storage.secret_keys import WEBHOOK_KEY

log = logging.getLogger(__name__)
T = TypeVar("T")

_TOKEN_LENGTH = 16  # characters of the shortest token that chat services issue
_SILENCE = 2.0  # seconds to connect, and between two bytes
_FORM = "https://HOST/PATH or http://HOST/PATH"


@dataclass(frozen=True)
class Webhook:
    """The receiver of notifications; its address is a secret."""

    url: str = field(repr=False)

    @classmethod
    def from_environment(cls) -> Webhook | None:
        """Return the webhook of this process, or None if there is none.

        Raises:
            ConfigurationError: The address is invalid; the error does not contain it.
        """
        url = SecretVolume.from_environment().get(WEBHOOK_KEY) or os.environ.get(WEBHOOK_KEY, "")
        if not url.strip():
            return None
        url = url.strip()
        path = url.partition("://")[2].partition("/")[2]
        hide([url, path] if _contains_token(path) else [url])
        if problem := _url_problem(url):
            raise ConfigurationError(
                Problem(
                    f"{WEBHOOK_KEY} is not the address of a webhook",
                    received=problem,
                    expected=_FORM,
                    fix=f"correct the key {WEBHOOK_KEY} in the Secret that storage_secret names"
                    " or, for"
                    " a local run, the environment variable; until then, no notifications are sent",
                )
            )
        return cls(url)

    @property
    def host(self) -> str:
        """The host, which may be shown."""
        return urlsplit(self.url).hostname or ""

    def send(self, document: Mapping[str, Any], seconds: float) -> str:
        """Send a document; return the problem, or an empty string if it was delivered."""
        body = json.dumps(document, ensure_ascii=False).encode()
        problem = call_with_timeout(seconds, lambda: self._post(body))
        return "no complete response in time" if problem is None else problem

    def _post(self, body: bytes) -> str:
        """Send a body; return the problem, or an empty string for a status from 200 to 299."""
        headers = {"Content-Type": "application/json; charset=utf-8", "User-Agent": "kfp-tfjob"}
        request = urllib.request.Request(self.url, body, headers, method="POST")
        opener = urllib.request.build_opener(_NoRedirect)
        try:
            with opener.open(request, timeout=_SILENCE) as reply:  # its body is not read
                return "" if 200 <= reply.status < 300 else f"HTTP {reply.status}"
        except urllib.error.HTTPError as error:
            redirect = ", a redirect, which is not followed" if 300 <= error.code < 400 else ""
            return f"HTTP {error.code}{redirect}"
        except urllib.error.URLError as error:
            return type(error.reason).__name__  # its text may contain the address
        except (OSError, http.client.HTTPException, ValueError) as error:
            return type(error).__name__


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """Follow no redirect: it could lead the notification to anyone."""
        return


def call_with_timeout(seconds: float, call: Callable[[], T]) -> T | None:
    """Return a call's result; None if it raises an exception or takes longer than `seconds`."""
    returned: list[T] = []

    def run() -> None:
        try:
            returned.append(call())
        except Exception as error:
            log.warning("the notification is not complete: %s", error)

    # Socket timeouts do not limit the whole call: a name server may be silent, and a server may
    # send a byte a second.
    thread = threading.Thread(target=run, name="notify", daemon=True)
    thread.start()
    thread.join(seconds)
    return returned[0] if returned else None


def _contains_token(path: str) -> bool:
    """Return whether a path alone is a secret.

    A path without a token is made of ordinary words, and masking them would damage other messages.
    """
    segments = re.split(r"[/?&=]", path)
    return any(len(segment) >= _TOKEN_LENGTH and re.search(r"\d", segment) for segment in segments)


def _url_problem(url: str) -> str:
    """Return the problem with an address, without the address; empty if it is valid."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        return "not a URL"
    if parts.scheme not in ("http", "https"):
        return "neither https nor http"
    if not host or any(character.isspace() or not character.isprintable() for character in url):
        return "a URL without a host, or with spaces"
    return ""
