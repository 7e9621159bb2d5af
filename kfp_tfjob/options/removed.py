"""Options that no longer exist, and what to do instead.

A schedule or a script may still send them: the answer to such a key is this table.
"""

from __future__ import annotations

# What to do instead, by path: a parameter, or a parameter and its keys.
REMOVED: dict[str, str] = {
    "data_options.append": "delete it; prepare_data reads every file",
    "data_options.workers": "name the scheduler of a Dask cluster of yours in data_options.dask",
}
