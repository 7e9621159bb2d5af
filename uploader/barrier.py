"""The sidecar's side of the flush barrier: tells the supervisor when everything is stored.

The barrier consists of two files in OUTPUT_DIR/.uploader, each replaced by an atomic rename
(docs/architecture.md, "The flush barrier"). The request is a state and not an event, so a restarted
sidecar reads it again. Called by `watch.py`; the other side is `supervisor/barrier.py`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kfp_tfjob.common import files
from kfp_tfjob.storage.layout import COMPLETION, FLUSH_REPLY, FLUSH_REQUEST, UPLOADER
from kfp_tfjob.supervisor.files import read_json

log = logging.getLogger(__name__)

_MOST_PATHS = 100  # in a reply, to keep it small; its message has the total


@dataclass(frozen=True)
class Request:
    """The supervisor's request to store everything.

    Attributes:
        id: Identifies the request.
        attempt: The attempt that asks.
        files: The number of files that it counted.
        inventory: The hexadecimal digest of their paths and sizes.
    """

    id: str
    attempt: int
    files: int
    inventory: str


class Barrier:
    """The two files of the barrier.

    Args:
        folder: The chief's OUTPUT_DIR.
        run_id: The run.
        attempt: The attempt of this sidecar, which ignores requests of other attempts.
    """

    def __init__(self, folder: Path, run_id: str, attempt: int) -> None:
        self._folder, self._run_id, self._attempt = folder, run_id, attempt
        self._logged = ""

    def pending(self) -> Request | None:
        """Return the request, unless it was already answered with `stored`."""
        body = read_json(self._folder / UPLOADER / FLUSH_REQUEST)
        try:
            request = Request(
                str(body["id"]), int(body["attempt"]), int(body["files"]), body["inventory"]
            )
        except (KeyError, TypeError, ValueError):  # no request yet, or another program's file
            return None
        reply = read_json(self._folder / UPLOADER / FLUSH_REPLY)
        answered = (reply.get("id"), reply.get("state")) == (request.id, "stored")
        return None if answered or request.attempt != self._attempt else request

    def completed(self) -> bool:
        """Return whether completion.json is from this run and attempt."""
        body = read_json(self._folder / COMPLETION)
        writer = (str(body.get("run_id")), str(body.get("attempt")))
        return writer == (self._run_id, str(self._attempt))

    def answer(
        self,
        request: Request,
        stored: int,
        missing: Sequence[str],
        message: str = "",
        impossible: bool = False,
    ) -> None:
        """Write the reply: `stored` if nothing is missing and there is no message.

        Args:
            request: The request to answer.
            stored: The number of files in the store.
            missing: Paths that are not in the store.
            message: The reason why files are not stored.
            impossible: Whether a file can never be stored, so that waiting does not help.
        """
        state = "storing" if missing or message else "stored"
        state = "impossible" if impossible else state
        reply = {
            "id": request.id,
            "state": state,
            "stored": stored,
            "missing": list(missing[:_MOST_PATHS]),
            "message": message,
        }
        try:
            files.write(self._folder / UPLOADER / FLUSH_REPLY, json.dumps(reply))
        except OSError as error:
            message = f"the reply cannot be written: {error}"
        # Without the reasons for missing files, which change often and which the mirror logs.
        summary = f"flush {request.id}: {state}" + (
            f", {message}" if message and not missing else ""
        )
        if summary != self._logged:
            self._logged = summary
            log.info("%s", summary)
