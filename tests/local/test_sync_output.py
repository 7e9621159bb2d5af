"""sync_output: green only when every byte is in the store."""

import json
from dataclasses import replace

import pytest

from kfp_tfjob.common.errors import DataError
from kfp_tfjob.components.finish import engine as finish
from kfp_tfjob.components.launch_tfjob.attempt_budget import Claim
from kfp_tfjob.components.notify import SUCCEEDED
from kfp_tfjob.components.notify_end import of_end
from kfp_tfjob.components.step import Step
from kfp_tfjob.components.summary import WHY_NO_DATA, WHY_NOT_EVALUATED
from kfp_tfjob.components.sync_output import sync
from kfp_tfjob.storage.layout import Layout
from kfp_tfjob.storage.manifest import Manifest, ManifestObject
from tests.problems import problems_of

RUN = "run-1"
FILES = {
    "output/model/saved_model.pb": b"graph",
    "output/model/variables/variables": b"w" * 5000,
    "output/checkpoints/10/part 0": b"c",
    "output/completion.json": json.dumps({"run_id": RUN, "attempt": 2, "finished": 1}).encode(),
}


@pytest.fixture
def step(store, base) -> Step:
    return Step("sync_output", RUN, Layout(base), store)


def write(step: Step, files: dict[str, bytes], **changes) -> Manifest:
    objects = [
        ManifestObject(key, len(data), step.store.write(step.run.base / key, data))
        for key, data in files.items()
    ]
    fields = {"kind": "output", "run_id": RUN, "attempt": 2} | changes
    manifest = Manifest.of(objects=objects, **fields)
    step.store.create(step.run.manifest, manifest.to_bytes())
    return manifest


def test_a_whole_output(step):
    manifest = write(step, FILES | {f"output/logs/{i}|x": b"" for i in range(20)})

    result = sync.run(step)

    assert result.model_uri == f"{step.run.base}/output/model"
    assert result.output_digest == manifest.digest
    assert "**Verified:** 24 objects, " in result.markdown


def test_everything_that_is_missing_or_differs_is_named(step):
    write(step, FILES)
    step.store.delete(step.run.output / "model/saved_model.pb")
    step.store.write(step.run.output / "checkpoints/10/part 0", b"C")

    problems = problems_of(sync.run, step, kind=DataError)

    assert len(problems) == 2 and all(problem.fix for problem in problems)
    said = str(problems)
    assert "model/saved_model.pb" in said and "checkpoints/10/part 0 " in said


def test_a_long_list_is_cut_and_counted(step):
    names = ["saved_model.pb", *map(str, range(59))]
    objects = [ManifestObject(f"output/model/{name}", 1, "") for name in names]
    manifest = Manifest.of("output", objects, RUN, 2)
    step.store.create(step.run.manifest, manifest.to_bytes())
    step.store.write(step.run.completion, FILES["output/completion.json"])

    with pytest.raises(DataError, match="10 more objects") as raised:
        sync.run(step)

    assert len(raised.value.problems) == 51


def test_an_output_that_was_never_completed(step):
    for key, data in FILES.items():
        step.store.write(step.run.base / key, data)
    with pytest.raises(DataError, match="never completed"):
        sync.run(step)


@pytest.mark.parametrize(
    ("files", "other", "problems"),
    [
        (FILES, {"attempt": 3}, ["another attempt"]),
        (FILES, {"run_id": "run-2"}, ["manifest"]),
        ({"output/logs/x": b"1"}, {}, ["completion.json", "model"]),
    ],
)
def test_what_is_not_the_output_of_this_attempt(step, files, other, problems):
    write(step, files, **other)
    found = problems_of(sync.run, step, kind=DataError)
    for problem, words in zip(found, problems, strict=True):
        assert words in str(problem)


@pytest.mark.parametrize(
    ("files", "named"),
    [
        (["output/model/1/saved_model.pb", "output/model/1/variables/variables.index"], True),
        (["output/export/7/saved_model.pb"], True),
        (["output/model/model.keras"], False),
        (["output/model/model.pt"], False),
    ],
)
def test_a_model_that_evaluate_would_not_find_is_named_with_its_folder(step, files, named):
    """`model/1`, as TensorFlow Serving wants it, failed in evaluate with a path in /tmp."""
    completion = "output/completion.json"
    write(step, dict.fromkeys(files, b"x") | {completion: FILES[completion]})
    (problem,) = problems_of(sync.run, step, kind=DataError)
    folder = files[0].rpartition("/")[0].replace("output", "$OUTPUT_DIR")
    assert (folder in problem.received and folder in problem.fix) is named
    assert sync.run(step, evaluate=False).manifest


def test_a_run_that_is_not_evaluated_needs_no_model_and_ends_here(step):
    completion = "output/completion.json"
    manifest = write(step, {"output/predictions.csv": b"1", completion: FILES[completion]})
    result = sync.run(step, evaluate=False)
    assert (result.model_uri, result.output_digest) == ("", manifest.digest)
    assert "**Model:**" not in result.markdown and "**Not evaluated:**" in result.markdown
    assert json.loads(step.store.read(step.run.not_evaluated))["run_id"] == RUN
    ending = finish.run(step, "m")
    assert ending.failure is None and "**Not evaluated:**" in ending.markdown
    notice = of_end(step, "m")
    assert (notice.outcome, notice.step) == (SUCCEEDED, "sync_output")
    assert WHY_NOT_EVALUATED in notice.message


def test_a_run_without_data_says_so(step):
    completion = "output/completion.json"
    write(step, {completion: FILES[completion]})
    for attempt, data in ((1, "d"), (2, "")):
        claim = replace(Claim.first(attempt, 0), inputs={"data": data})
        step.store.write(step.run.attempt(attempt), claim.to_bytes(RUN, "job", "hash"))
    sync.run(step, evaluate=False)
    assert json.loads(step.store.read(step.run.not_evaluated))["why"] == WHY_NO_DATA
    assert WHY_NO_DATA in of_end(step, "m").message
    assert WHY_NO_DATA in finish.run(step, "m").markdown


def test_a_model_that_is_not_evaluated_is_named_and_all_is_verified(step):
    write(step, FILES)
    assert sync.run(step, evaluate=False).model_uri == str(step.run.model)
    step.store.delete(step.run.output / "model/saved_model.pb")
    with pytest.raises(DataError, match="saved_model.pb"):
        sync.run(step, evaluate=False)
