"""Each verdict and each named problem has a section in docs/failures.md, and every section one."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from kfp_tfjob.common.docs_page import (
    SITE_VARIABLE,
    address_line,
    address_of,
    split_address,
)
from kfp_tfjob.common.errors import ConfigurationError, Problem
from kfp_tfjob.components.finish import run_report
from kfp_tfjob.components.launch_tfjob.attempt import words
from kfp_tfjob.jobs.failure_record import Failure
from kfp_tfjob.jobs.verdict import ContainerFailure, Judgement, Verdict
from kfp_tfjob.options.parse import unknown_key
from kfp_tfjob.pipelines.compilation import compile_all, parse
from kfp_tfjob.supervisor import exit_codes
from tests.docs.test_docs_site import anchors
from tests.local.laptop import kfp_tfjob

SITE = "https://docs.example/tfjob/"
NAMING = ("Problem", "Finding", "replace", "address_of")  # the calls that take a problem's name


def trees(repository: Path, *roots: str) -> Iterator[ast.Module]:
    for root in roots:
        for path in (repository / root).rglob("*.py"):
            yield ast.parse(path.read_text())


def names_in(tree: ast.Module) -> Iterator[str]:
    """Yield the names of problems that a module gives; each is written where it is given."""
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call) or getattr(call.func, "id", "") not in NAMING:
            continue
        arguments = [keyword.value for keyword in call.keywords if keyword.arg == "name"]
        if getattr(call.func, "id", "") == "address_of":
            arguments = call.args
        for argument in arguments:
            if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                yield argument.value


def verdicts_in(tree: ast.Module) -> Iterator[str]:
    """Yield the verdicts of the classes of errors."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            for line in node.body:
                if not isinstance(line, ast.Assign | ast.AnnAssign):
                    continue
                target = line.target if isinstance(line, ast.AnnAssign) else line.targets[0]
                content = getattr(line.value, "value", None)
                if ast.unparse(target) == "verdict" and isinstance(content, str):
                    yield content


@pytest.fixture
def sections(repository: Path) -> dict[str, list[str]]:
    """The titles of level 3 below each title of level 2."""
    text = (repository / "docs/failures.md").read_text()
    chapters = re.split(r"^## (.+)$", text, flags=re.MULTILINE)[1:]
    return {
        title: re.findall(r"^### (.+)$", content, re.MULTILINE)
        for title, content in zip(chapters[::2], chapters[1::2], strict=True)
    }


def test_the_page_has_a_section_for_each_verdict(
    repository: Path, sections: dict[str, list[str]]
) -> None:
    # Errors elsewhere end a container or a command, so no record has their verdicts.
    code = trees(repository, "components", "kfp_tfjob")
    verdicts = {verdict for tree in code for verdict in verdicts_in(tree)}
    assert {"surpassed", "cluster_unavailable"} < verdicts  # the search works
    assert sorted(sections["Verdicts"]) == sorted(verdicts | {str(it) for it in Verdict})


def test_the_page_has_a_section_for_each_named_problem(
    repository: Path, sections: dict[str, list[str]]
) -> None:
    code = trees(repository, "components", "kfp_tfjob", "pipelines", "trainer", "uploader")
    names = {name for tree in code for name in names_in(tree)} - {*sections["Verdicts"]}
    assert len(names) > 90
    assert all(re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name) for name in names), names
    assert sections["Problems"] == sorted(names)
    assert names <= anchors(repository / "docs/failures.md")


def test_a_record_has_the_name_of_its_first_named_problem() -> None:
    unnamed = Problem("the rows are wrong", fix="correct them")
    named = unknown_key("train_options", "sed", ["seed"])
    failure = Failure.of("preflight", ConfigurationError(unnamed, named))
    assert (failure.name, failure.docs) == ("unknown-key", "docs/failures.md#unknown-key")
    assert [problem.name for problem in failure.problems] == ["", "unknown-key"]
    assert Failure.from_bytes(failure.to_bytes()) == failure
    assert Failure.from_line(failure.to_line()) == failure
    assert failure.docs in run_report.describe(failure)[-2]
    without = Failure.of("preflight", ConfigurationError(unnamed))
    assert without.name == without.verdict == "user_error"


def test_a_record_keeps_its_name_if_it_is_too_long_for_the_log() -> None:
    problems = [Problem("\u00e9" * 1900, fix="f" * 1900, name="disk-full") for _ in range(20)]
    failure = Failure.from_line(Failure.of("preflight", ConfigurationError(*problems)).to_line())
    assert failure and not failure.problems and failure.name == "disk-full"


def test_a_record_of_an_earlier_version_has_the_section_of_its_verdict() -> None:
    data = b'{"step": "launch_tfjob", "code": 2, "verdict": "out_of_memory", "message": "m"}'
    assert Failure.from_bytes(data).docs_address == address_of("out_of_memory")


def test_a_job_that_ends_has_the_name_of_its_verdict_or_of_the_exit_code() -> None:
    stalled = Failure.of("launch_tfjob", Judgement(Verdict.STALLED, "no log").failure())
    assert stalled.name == "stalled"
    for code, name in ((exit_codes.NOT_FINITE, "loss-not-finite"), (exit_codes.DATA, "user_error")):
        ended = ContainerFailure("chief-0", "tensorflow", code, "Error", "", "")
        error = Judgement(Verdict.USER_ERROR, ended.sentence, ended).failure().after("2 attempts")
        assert Failure.of("launch_tfjob", error).name == name


def test_a_job_that_ends_has_the_name_of_the_trainers_problem(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The trainer's image knows no site, so the launcher makes the address again."""
    message = f"2 problems:\n  1. docs: none.\n{address_line('loss-mismatch')}"
    monkeypatch.setenv(SITE_VARIABLE, SITE)
    ended = ContainerFailure("chief-0", "tensorflow", exit_codes.CONFIGURATION, "", message, "")
    judgement = Judgement(Verdict.USER_ERROR, ended.sentence, ended)
    last_lines = words(judgement, "tensorflow", lambda *_: [])
    assert last_lines == ["2 problems:", "  1. docs: none."]
    failure = Failure.of("launch_tfjob", judgement.failure(last_lines))
    assert failure.name == failure.problems[0].name == "loss-mismatch"
    assert failure.docs == "https://docs.example/tfjob/failures/#loss-mismatch"
    assert failure.last_lines == tuple(last_lines)


def test_a_program_without_such_a_line_has_no_name() -> None:
    for message in ("", "docs: README.md#x", "see docs/failures.md#stalled", "docs: a\nfailed"):
        assert split_address(message) == (message, "")


def test_the_site_is_compiled_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SITE_VARIABLE, SITE)
    assert address_of("stalled") == "https://docs.example/tfjob/failures/#stalled"
    monkeypatch.delenv(SITE_VARIABLE)
    for path in compile_all(tmp_path, docs_url=SITE):
        executors = parse(path.read_text())[0]["deploymentSpec"]["executors"].values()
        for executor in executors:
            assert {"name": SITE_VARIABLE, "value": SITE} in executor["container"]["env"]


def test_an_address_of_a_site_must_be_a_url(tmp_path: Path) -> None:
    for url in ("docs.example", "https://docs.example/#top", "ftp://docs.example"):
        shown = kfp_tfjob("compile", "--output", tmp_path, "--docs-url", url, code=2)
        assert url in shown.stderr
    assert not list(tmp_path.iterdir())


def test_a_command_prints_the_address_last() -> None:
    shown = kfp_tfjob("explain", "train_options.sed", code=exit_codes.CONFIGURATION)
    assert shown.stderr.splitlines()[-1] == "docs: docs/failures.md#unknown-key"
