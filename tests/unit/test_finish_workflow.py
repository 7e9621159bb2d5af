"""Which step failed, told from a Workflow and its pods as Kubeflow Pipelines 2.17 makes them."""

from dataclasses import replace
from typing import Any

import pytest
from markdown_it import MarkdownIt

from kfp_tfjob.cluster.own_task import node_path
from kfp_tfjob.common.errors import ConfigurationError, DataError, Problem, StepError
from kfp_tfjob.components.finish import engine, run_report
from kfp_tfjob.components.finish.leftover_jobs import ClusterReport
from kfp_tfjob.components.finish.workflow import FailedTask, cause, failed_tasks, read_failed_tasks
from kfp_tfjob.jobs.failure_record import Failure

RUN = "tfjob-training-x7k2p"
MISSING = ConfigurationError(
    Problem(
        "there are no credentials to write s3://b/runs/r1/probe",
        received="Unable to locate credentials",
        fix="create the Secret named by storage_secret",
    ),
    "Secret objstore-cred does not exist",
)
RECORD = Failure.of("preflight", MISSING)
LOG = [
    "12:00:31 the store of s3://b is asked",
    RECORD.to_line(),
    "12:00:31 preflight failed (user_error): 2 problems:",
    "F0822 12:00:32.000000       1 main.go:54] failed to execute component: exit status 2",
]


def node(name: str, kind: str, phase: str, message: str = "", at: int = 0) -> dict[str, Any]:
    """Return a node; `name` is without the Workflow's."""
    return {
        "id": f"{RUN}-{abs(hash(name)) % 10**9}",
        "name": f"{RUN}{name}",
        "displayName": name.rpartition(".")[2],
        "type": kind,
        "phase": phase,
        "message": message,
        "startedAt": "2026-11-22T12:00:00Z",
        "finishedAt": f"2026-11-22T12:00:{at:02d}Z",
    }


def task(name: str, phase: str, message: str = "", at: int = 0) -> list[dict[str, Any]]:
    """Return the nodes of a task of ours: each template is a Retry node by KFP's default."""
    place = f"(0).root(0).exit-handler-1(0).{name}"
    return [
        node(f"{place}-driver", "Retry", "Succeeded", at=at),
        node(f"{place}-driver(0)", "Pod", "Succeeded", at=at),
        node(place, "Retry", phase, message, at),
        node(f"{place}(0)", "DAG", phase, at=at),
        node(f"{place}(0).executor", "Retry", phase, message, at),
        node(f"{place}(0).executor(0)", "Pod", phase, message, at),
    ]


def workflow(*tasks: list[dict[str, Any]], **spec: Any) -> dict[str, Any]:
    frame = [
        node("", "Retry", "Failed"),
        node("(0)", "DAG", "Failed"),
        node("(0).root-driver(0)", "Pod", "Succeeded"),
        node("(0).root(0)", "DAG", "Failed"),
        node("(0).root(0).exit-handler-1(0)", "DAG", "Failed"),
        node("(0).root(0).exit-handler-1.onExit(0)", "DAG", "Running"),
        node("(0).root(0).exit-handler-1.onExit(0).finish(0).executor(0)", "Pod", "Running"),
    ]
    nodes = {item["id"]: item for part in (frame, *tasks) for item in part}
    return {"metadata": {"name": RUN}, "spec": spec, "status": {"nodes": nodes}}


def pods(run: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the pods of a Workflow, as the API server shows them."""
    shown = []
    for item in run["status"]["nodes"].values():
        place = "workflows.argoproj.io/node-"
        annotations = {f"{place}id": item["id"], f"{place}name": item["name"]}
        ended = {"exitCode": 1, "reason": "Error", "finishedAt": item["finishedAt"]}
        main = {"name": "main", "state": {"terminated": ended}}
        status = {
            "phase": item["phase"],
            "containerStatuses": [{"name": "wait", "state": {}}, main],
        }
        metadata = {"name": f"{RUN}-impl-{len(shown)}", "annotations": annotations}
        if item["type"] == "Pod":
            shown.append({"metadata": metadata, "status": status})
    return shown


CRASH = "Error (exit code 1)"
PREFLIGHT = workflow(task("preflight", "Failed", CRASH, 31), task("prepare-data", "Omitted"))


def test_the_step_that_failed_is_found_among_the_nodes() -> None:
    (found,) = failed_tasks(PREFLIGHT, pods(PREFLIGHT))
    assert (found.step, found.driver, found.message) == ("preflight", False, CRASH)
    assert found.ended == "2026-11-22T12:00:31Z" and found.pod.startswith(RUN)


def test_without_the_default_of_a_retry_the_names_are_bare() -> None:
    name = ".root.exit-handler-1.launch-tfjob.executor"
    run = workflow([node(name, "Pod", "Error", "pod deleted", 5)])
    (found,) = failed_tasks(run, pods(run))
    assert (found.step, found.message) == ("launch_tfjob", "pod deleted")


def test_the_last_try_of_a_step_counts() -> None:
    place = "(0).root(0).exit-handler-1(0).launch-tfjob(0).executor"
    tries = [
        node(f"{place}(0)", "Pod", "Error", "pod deleted", 5),
        node(f"{place}(1)", "Pod", "Succeeded", at=9),
    ]
    assert failed_tasks(workflow(tries), []) == []
    tries.append(node(f"{place}(2)", "Pod", "Failed", CRASH, 12))
    (found,) = failed_tasks(workflow(tries), [])
    assert (found.message, found.ended[-3:-1]) == (CRASH, "12")


def test_where_the_nodes_are_kept_elsewhere_the_pods_tell() -> None:
    shown = pods(PREFLIGHT)
    packed = PREFLIGHT | {"status": {"compressedNodes": "H4sI", "nodes": None}}
    for run in (packed, {}):
        (found,) = failed_tasks(run, shown)
        assert (found.step, found.message) == ("preflight", CRASH)


def test_the_first_step_that_failed_is_the_cause() -> None:
    tasks = task("sync-output", "Failed", CRASH, 40), task("evaluate", "Error", "deleted", 35)
    found = failed_tasks(workflow(*tasks), [])
    assert [item.step for item in found] == ["evaluate", "sync_output"]
    assert cause(found, None).step == "evaluate"


def failed(lines: list[str], said: str = CRASH, driver: bool = False) -> FailedTask:
    return FailedTask("preflight", driver, said, "2026-11-22T12:00:31Z", "pod-1", lines)


def test_the_record_in_the_log_is_the_failure() -> None:
    assert failed(LOG).failure == RECORD
    assert failed(LOG).last_words == [LOG[0], *LOG[2:]]
    # A person's terminate kills steps, but what failed before has said so.
    assert cause([failed(LOG)], terminated=True) == RECORD
    assert cause([failed([])], terminated=True) is None


def test_a_record_is_one_ascii_line_of_bounded_length() -> None:
    text = Failure("preflight", 2, "user_error", "a\n\x1b[2J\u202e" * 40_000).to_line()
    assert text.isascii() and text.isprintable() and len(text) < 64 * 1024
    assert Failure.from_line(text).message.startswith("a\n\x1b[2J")
    assert Failure.from_line("[chief-0] " + text) is None
    for other in ("failure.json {", "failure.json {}", 'failure.json {"a": 1}', "failure.json 1"):
        assert Failure.from_line(other) is None


@pytest.mark.parametrize(
    ("said", "driver", "code", "verdict", "words"),
    [
        ("OOMKilled (exit code 137)", False, 137, "out_of_memory", "preflight ran out of memory"),
        ("main: Error (exit code 3)", False, 3, "failed", "preflight ended without a message"),
        ("", False, 1, "failed", "no reason from Argo"),
        (CRASH, True, 1, "failed", "Kubeflow Pipelines could not start preflight"),
    ],
)
def test_a_step_without_words_has_those_of_argo(said, driver, code, verdict, words) -> None:
    failure = failed(["Killed"], said, driver).failure
    assert (failure.step, failure.code, failure.verdict) == ("preflight", code, verdict)
    assert words in failure.message and "Fix: " in failure.message
    assert ("--step-resources preflight.memory=" in failure.message) == (verdict == "out_of_memory")


def test_a_step_that_the_run_can_size_names_its_parameter() -> None:
    task = replace(failed([], "OOMKilled (exit code 137)", False), step="publish")
    assert "pod.evaluate.memory" in task.failure.message


class Api:
    """An API server that refuses some paths."""

    def __init__(self, *refused: str) -> None:
        self.refused = refused

    def core(self, kind: str) -> str:
        return kind

    def workflow(self, name: str) -> str:
        return f"workflows/{name}"

    def get(self, path: str) -> dict[str, Any]:
        if path in self.refused:
            raise StepError("forbidden")
        return {f"workflows/{RUN}": PREFLIGHT, "pods": pods(PREFLIGHT)}[path]

    def list(self, path: str, labelSelector: str) -> list[dict[str, Any]]:  # noqa: N803
        assert labelSelector == "pipeline/runid=r1"
        return self.get(path)


@pytest.mark.parametrize("refused", [(), (f"workflows/{RUN}",), ("pods",)])
def test_what_may_not_be_read_is_done_without(refused: tuple[str, ...]) -> None:
    found, is_read = read_failed_tasks(
        Api(*refused), "r1", RUN, lambda pod, container, lines: LOG[-lines:]
    )
    assert is_read is (f"workflows/{RUN}" not in refused)
    assert [(item.step, item.message) for item in found] == [("preflight", CRASH)]
    assert [item.record for item in found] == [None if "pods" in refused else RECORD]


def test_a_run_without_its_secret_says_why_without_the_store(monkeypatch, capsys) -> None:
    """Neither preflight could write its record, nor can finish read it."""
    left = ClusterReport(failed=(failed(LOG),))
    monkeypatch.setattr(engine, "end_jobs", lambda run_id: left)
    monkeypatch.delenv("KFP_TFJOB_BACKEND", raising=False)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_PROFILE", "STORAGE_SECRET_DIR"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, "/nowhere")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    markdown = engine.run_as_exit_task("r1", "s3://b/team-a", "http://127.0.0.1:9", "", "m")
    first, _, heading, *_ = markdown.splitlines()
    assert "`kfp-tfjob why r1`" in first
    assert heading == "# Run r1 failed in `preflight`"
    for part in ("`s3://b/runs/r1/probe`", "**Fix:** ", "`storage_secret`", "Secret objstore-cred"):
        assert part in markdown
    # The log is the first tab people open.
    said = capsys.readouterr().out
    assert "preflight (user_error): 2 problems:" in said and MISSING.problems[0].fix in said


HOSTILE = 'a"\n```\n<script>alert(1)</script>\n# b `c` \x1b[2J_d_ | e'


def test_a_failure_is_paragraphs_whatever_the_data_calls_itself() -> None:
    """A quoted header of a CSV may hold newlines, a fence and HTML."""
    error = DataError(
        Problem(f"column {HOSTILE} is twice there", [HOSTILE], HOSTILE, f"drop {HOSTILE}"),
        Problem(f"there is no column {HOSTILE}", HOSTILE, fix="correct data_label"),
    )
    shown = "\n".join(run_report.describe(Failure.of("prepare_data", error)))
    tokens = MarkdownIt("commonmark").enable("table").parse(shown)
    blocks = {token.type.removesuffix("_open").removesuffix("_close") for token in tokens}
    assert blocks == {"paragraph", "heading", "inline"}
    parts = {part.type for token in tokens for part in token.children or ()}
    assert parts <= {"text", "code_inline", "strong_open", "strong_close"}
    headings = [token.content for token in tokens if token.content.startswith("Problem")]
    assert headings == ["Problem 1", "Problem 2"]
    assert "\x1b" not in shown and "**Fix:** correct `data_label`." in shown


def test_a_node_keeps_its_path_in_every_try_and_an_iteration_has_its_own():
    path = "run{0}.root{0}.for-loop-1{0}.iteration(0:{1}){0}.launch-tfjob{0}.executor({2})"
    first, retried, second = (path.format("(0)", *it) for it in ((0, 0), (0, 1), (1, 0)))
    assert node_path(first) == node_path(retried) == node_path(path.format("", 0, 0))
    assert node_path(second) != node_path(first)
