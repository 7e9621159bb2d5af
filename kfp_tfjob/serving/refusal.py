"""The error of a rejected request, and the body of its response.

Raised by the modules that read a request; `server.py` sends the response.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from kfp_tfjob.common.errors import DataError, Problem, StepError, first

SHOWN = 20  # problems of one request; every row of a large one may have the same problem


class RefusedRequest(DataError):
    """A request that cannot be answered unless the client changes it.

    Args:
        *problems: All problems of the request.
        status: The response's status.
    """

    def __init__(self, *problems: Problem, status: HTTPStatus = HTTPStatus.BAD_REQUEST) -> None:
        super().__init__(*first(problems, SHOWN, "problems are in this request"))
        self.status = status


def answer(error: StepError) -> dict[str, Any]:
    """Return the response's body: `error` for people, `problems` for programs."""
    return {"error": str(error), "problems": [problem.parts for problem in error.as_problems]}
