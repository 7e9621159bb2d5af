"""The record of a failure keeps its parts, whatever words a quoted value has."""

from kfp_tfjob.common.errors import DataError, Example, Problem
from kfp_tfjob.jobs.failure_record import FailedProblem, Failure
from kfp_tfjob.jobs.verdict import JobFailedError, Judgement, Verdict

QUOTED = "a. Fix: none. Its last lines: b"


def again(failure: Failure) -> Failure:
    return Failure.from_bytes(failure.to_bytes())


def test_one_problem_in_its_parts() -> None:
    error = DataError(Problem("no rows", QUOTED, "some", "add rows", path="data_uri"))
    found = again(Failure.of("prepare_data", error))
    assert found.problems == (FailedProblem("no rows", QUOTED, "some", "add rows", "data_uri"),)
    assert (found.fix, found.code, found.verdict) == ("add rows", 3, "user_error")
    assert found.message == str(error)
    assert found.reason == f"no rows. Received: {QUOTED}. Expected: some."


def test_one_problem_with_examples() -> None:
    error = DataError(Problem("1 row is invalid", fix="mend"), Example("a.csv, line 3"))
    found = again(Failure.of("prepare_data", error))
    assert found.reason.splitlines() == ["1 row is invalid.", "    - a.csv, line 3."]


def test_several_problems_with_examples_and_warnings() -> None:
    rows = Problem("2 rows", fix="mend")
    error = DataError(rows, Example("a.csv, line 3"), Problem("b", fix="c"), notes=["slow"])
    found = again(Failure.of("prepare_data", error))
    assert [it.examples for it in found.problems] == [("a.csv, line 3.",), ()]
    assert (found.fix, found.notes) == ("mend; c", ("Warning: slow.",))
    assert found.reason == found.message == str(error)


def test_the_last_lines_of_a_job_are_not_a_part_of_its_problem() -> None:
    said = ["step 1", "no data. Fix: none"]
    judgement = Judgement(Verdict.STALLED, "chief-0 stalled", fix="see log")
    error = judgement.failure(said).after("2 attempts")
    found = again(Failure.of("launch_tfjob", error))
    assert (found.fix, found.last_lines) == ("see log", tuple(said))
    assert len(found.notes) == 1 and "2 attempts" in found.notes[0]
    assert str(error) == found.message
    first, *last = found.message.split("\n")
    assert first.startswith("chief-0 stalled. Fix: see log. ")
    assert last == [*(f"    {line}" for line in said), *found.notes]
    assert "Fix: see" not in found.reason and "    step 1" in found.reason
    repeated = JobFailedError.again(found)
    assert (str(repeated), repeated.record) == (str(error), found)


def test_a_record_of_an_earlier_version_and_of_a_later_one() -> None:
    old = Failure("launch_tfjob", 1, "failed", "x. Fix: y.")
    assert again(old) == old and old.reason == "x. Fix: y." and not old.fix
    assert Failure.from_line(old.to_line()) == old
    later = old.to_bytes().replace(b'"step"', b'"new": {}, "step"')
    assert Failure.from_bytes(later) == old


def test_a_line_of_a_log_leaves_the_parts_out_before_it_is_too_long() -> None:
    long = Failure.of(
        "prepare_data", DataError(Problem("x" * 1500, "\u00e9" * 1900, fix="f" * 1900))
    )
    assert Failure.from_line(long.to_line()) == long
    error = DataError(*(Problem("\u00e9" * 1900, fix="f" * 1900) for _ in range(20)))
    line = Failure.of("prepare_data", error).to_line()
    found = Failure.from_line(line)
    assert len(line) < 64 << 10 and found and not found.problems
    assert found.message == str(error)[:8000]
