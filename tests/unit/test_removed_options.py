"""An option that no longer exists is refused with what to do instead."""

import pytest

from kfp_tfjob.options.parse import parse, unknown_key
from kfp_tfjob.options.pipeline import PARAMETERS
from kfp_tfjob.options.removed import REMOVED
from kfp_tfjob.storage.errors import ConfigurationError, Problem


def problem(path: str) -> Problem:
    """Return the one problem of parameters in which only `path` is wrong."""
    name, *keys = path.split(".")
    if not keys:
        return unknown_key("", name, PARAMETERS)
    value = True
    for key in reversed(keys):
        value = {key: value}
    with pytest.raises(ConfigurationError) as caught:
        parse(PARAMETERS[name].group, name, value)
    (found,) = caught.value.problems
    return found


@pytest.mark.parametrize("path", [*REMOVED, "gone", "data_options.gone", "pod.all.gone"])
def test_a_removed_option_names_its_successor(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if path.endswith("gone"):
        monkeypatch.setitem(REMOVED, path, "set it elsewhere")
    found = problem(path)
    assert (found.path, found.fix, found.suggestion) == (path, REMOVED[path], "")
    assert found.is_misnamed  # so no hint says how to set it
