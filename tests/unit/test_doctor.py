"""What the doctor makes of versions; the rest asks a cluster."""

import pytest
from click.testing import CliRunner

from kfp_tfjob.checks.engine import findings
from kfp_tfjob.checks.finding import ok
from kfp_tfjob.cluster.api_errors import ForbiddenError
from kfp_tfjob.common.errors import ConfigurationError, Problem
from kfp_tfjob.pipelines import doctor
from kfp_tfjob.pipelines.cli import main
from kfp_tfjob.pipelines.compilation import FOLDER


@pytest.mark.parametrize(
    ("version", "level", "state"),
    [
        ("2.17.0", "restricted", "ok"),
        ("2.17.3", "", "ok"),
        ("v2.16.1", "", "warning"),
        ("2.18.0", "restricted", "warning"),
        ("2.15.3", "restricted", "problem"),
        ("2.15.3", "baseline", "warning"),
        ("2.4.1", "privileged", "problem"),
        ("1.8.22", "privileged", "problem"),
        ("unknown", "restricted", "unknown"),
    ],
)
def test_versions_of_the_back_end(version, level, state):
    (found,) = doctor.check_version(version, "at http://x", level)
    assert found.status == state
    assert bool(found.fix) is (state != "ok") and "at http://x" in found.what


@pytest.mark.parametrize(
    ("version", "account", "warned"),
    [("2.18.0", "mine", True), ("2.17.0", "mine", False), ("2.18.0", "", False)]
    + [("2.18.0", "default-editor", False)],
)
def test_a_back_end_that_allows_some_service_accounts(version, account, warned):
    (_, *more) = doctor.check_version(version, "at http://x", "", account)
    assert [(it.status, "ALLOWEDSERVICEACCOUNTS" in it.fix) for it in more] == (
        [("warning", True)] if warned else []
    )


def test_a_pipeline_that_no_node_can_run_is_refused():
    done = CliRunner().invoke(main, ["doctor", "--pipeline", str(FOLDER / "tfjob_training.yaml")])
    assert done.exit_code == 2 and "exist in no registry" in done.output


def test_every_problem_is_a_finding_with_its_fix():
    def check():
        yield ok("before")
        raise ConfigurationError(Problem("a", "b", "c", "d"), "plain")

    first, second, third = findings("x", check)
    assert first == ok("before") and second.parts == dict(
        what="a", received="b", expected="c", fix="d"
    )
    assert (third.what, third.status) == ("plain", "problem")


def test_what_may_not_be_checked_is_unknown():
    def check():
        yield ok("before")
        raise ForbiddenError(Problem("this step is not allowed to x", "forbidden"))

    _, found = findings("the nodes", check)
    assert (found.status, found.received) == ("unknown", "forbidden")
    assert found.what.startswith("the nodes")


def test_a_defect_of_a_check_is_a_finding():
    def check():
        raise KeyError("x")

    (found,) = doctor._run_check("the store", check)
    assert found.status == "problem" and "bug" in found.what
