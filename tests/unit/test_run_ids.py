"""The beginning of a run id stands for the id if only one run has it."""

from pathlib import Path

import pytest

from kfp_tfjob.pipelines.commands.run import _earlier
from kfp_tfjob.pipelines.local.home import PARAMETERS, Home
from kfp_tfjob.pipelines.stored_run import _local
from kfp_tfjob.storage.errors import ConfigurationError
from kfp_tfjob.storage.run_folder import full_id

KNOWN = ["c82b2f4a-1", "c82b9999-1", "c82b9999-10", "f00d"]


@pytest.mark.parametrize(
    ("given", "found"),
    [("f", "f00d"), ("c82b2", "c82b2f4a-1"), ("c82b9999-1", "c82b9999-1"), ("", ""), ("x", "x")],
)
def test_a_unique_beginning_is_enough(given: str, found: str) -> None:
    assert full_id(given, KNOWN) == found


def test_a_run_on_this_machine_is_found_by_its_beginning(tmp_path: Path) -> None:
    home = Home(tmp_path)
    for name in ("20261123-193500-ab12", "20261123-204500-cd34"):
        home.run(name).mkdir(parents=True)
        (home.run(name) / PARAMETERS).write_text('{"a": 1}')
    assert _local(home, "20261123-19", local=True) == home.run("20261123-193500-ab12")
    assert _local(home, "c82b2f4a", local=False) is None  # of Kubeflow Pipelines
    with pytest.raises(ConfigurationError, match="begin with 2026"):
        _local(home, "2026", local=False)
    known = [path.name for path in home.run("x").parent.glob("*")]
    assert _earlier(home, full_id("20261123-20", known)) == {"a": 1}
