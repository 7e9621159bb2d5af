"""Finds the run that a user names: by its id, the beginning of it, its name, or `last`.

The API finds runs only by id and by name, so a prefix is compared with the newest runs. Called by
the Python client and `stored_run.py`.
"""

from __future__ import annotations

import re
from itertools import islice

from kfp_tfjob.common.errors import ConfigurationError, Problem
from kfp_tfjob.common.formatting import counted, listed
from kfp_tfjob.registry.run_folder import LAST

from .connection import BackEnd
from .errors import UnknownRunError
from .runs import Run, list_runs, named, raw_runs, read_run, run_of

_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_PREFIX = re.compile(r"[0-9a-f][0-9a-f-]{3,35}")
_SEARCHED = 1000  # newest runs among which a prefix is looked up, because the API cannot do it


def find_run(back_end: BackEnd, identifier: str) -> Run:
    """Return a run by its id, a unique beginning of the id, its name, or `last`.

    `last` is the newest run of this pipeline. The other forms find runs of any pipeline, for
    example of a user's pipeline with steps of this project.

    Raises:
        UnknownRunError: There is no such run.
        ConfigurationError: Several runs match.
    """
    identifier = identifier.strip()
    if _ID.fullmatch(identifier):
        try:
            return read_run(back_end, identifier)
        except UnknownRunError as error:
            raise _no_run(back_end, identifier) from error
    if identifier == LAST:
        matches = list(islice(list_runs(back_end), 1))
    else:
        same_name = named(back_end, identifier)[::-1] if identifier else []
        matches = [run for run in same_name if not run.is_archived] or same_name
    if not matches and _PREFIX.fullmatch(identifier):
        newest = islice(raw_runs(back_end), _SEARCHED)
        matches = [run_of(back_end, raw) for raw in newest if raw.run_id.startswith(identifier)]
    if len(matches) == 1:
        return read_run(back_end, matches[0].run_id)
    if matches:
        fix = f"give the id, for example {matches[0].run_id[:8]} for the newest"
        if all(run.run_id.startswith(identifier) for run in matches):
            fix = "type more of the id"
        raise ConfigurationError(
            Problem(
                f"several runs are called {identifier}",
                received=counted(len(matches), "run"),
                expected=f"one of {listed(map(_label, matches), 5)}",
                fix=fix,
            )
        )
    raise _no_run(back_end, identifier)


def _no_run(back_end: BackEnd, identifier: str) -> UnknownRunError:
    newest = ", ".join(map(_label, islice(list_runs(back_end), 5)))
    is_last = identifier == LAST
    return UnknownRunError(
        Problem(
            "there is no run of this pipeline yet" if is_last else "there is no such run",
            received=identifier or "nothing",
            expected=f"an id, a unique id prefix, a name or {LAST}; the newest: {newest or 'none'}",
            fix="list them with `kfp-tfjob runs`",
            name="run-not-found",
        )
    )


def _label(run: Run) -> str:
    return f"{run.name} ({run.run_id[:8]}, {run.state})"
