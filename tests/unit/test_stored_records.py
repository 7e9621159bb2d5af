"""Records of runs, checkpoints and datasets in the forms of this version are read.

They are from local runs on 2,000 rows at commit 4d2ba61: one finished, a SIGTERM interrupted one,
one failed. The folders of the runs are named after that, and paths in the records of attempts were
replaced; everything else is as it was stored. Verdicts and champions have other forms since then:
`tests/golden/stored-forms.json` has those.
"""

import json
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from kfp_tfjob.common.errors import DataError
from kfp_tfjob.components.finish.run_report import explain
from kfp_tfjob.components.launch_tfjob import report
from kfp_tfjob.components.launch_tfjob.attempt_budget import Claim
from kfp_tfjob.components.launch_tfjob.records import Records
from kfp_tfjob.features.schema import Schema, SchemaLabel
from kfp_tfjob.features.statistics import StatisticsDocument
from kfp_tfjob.jobs.attempt_record import AttemptEnd
from kfp_tfjob.jobs.failure_record import Failure
from kfp_tfjob.jobs.verdict import Verdict
from kfp_tfjob.storage.checksum import crc64nvme
from kfp_tfjob.storage.layout import CODEC_VERSION, MANIFEST, Layout, attempt_record
from kfp_tfjob.storage.manifest import Manifest
from kfp_tfjob.trainer import checkpoint_folder, checkpoint_format
from kfp_tfjob.trainer.dataset import Dataset
from tests.problems import problem_of

STORED = Path(__file__).parents[1] / "data" / "stored"
LAYOUT = Layout.parse("s3://bucket")


def stored(address: object) -> bytes:
    return (STORED / str(address).removeprefix("s3://bucket/")).read_bytes()


def _name(path: Path) -> str:
    return str(path.parent.relative_to(STORED))


@pytest.mark.parametrize("path", sorted(STORED.rglob(MANIFEST)), ids=_name)
def test_a_manifest_is_read_and_names_the_same_bytes(path: Path) -> None:
    manifest = Manifest.from_bytes(path.read_bytes())
    assert manifest.to_bytes() == path.read_bytes()
    for item in manifest.objects:
        file = path.parent / item.key
        if file.exists():  # models and shards are not kept here
            assert file.stat().st_size == item.size
            assert crc64nvme(file.read_bytes()) == item.crc64nvme


@pytest.mark.parametrize("run_id", ["finished", "interrupted", "failed"])
def test_the_claims_of_an_attempt_are_read(run_id: str) -> None:
    run = LAYOUT.run(run_id)
    claim = Claim.from_bytes(stored(run.attempt(1)), 1)
    assert (claim.attempt, claim.since, claim.checkpoint, claim.fruitless) == (1, 1, 0, 0)
    assert claim.began > 1.7e9
    names = {path.name for path in (STORED / "runs" / run_id / "attempts").iterdir()}
    found = {attempt_record(name) for name in names}
    assert found - {None} == {(1, 0), (1, 1)}


def test_the_end_of_an_attempt_is_read_and_shown() -> None:
    ends = {
        name: AttemptEnd.from_bytes(stored(LAYOUT.run(name).attempt_end(1)))
        for name in ("finished", "failed")
    }
    assert (ends["finished"].verdict, ends["finished"].code) == (Verdict.SUCCEEDED, 0)
    assert (ends["failed"].verdict, ends["failed"].code) == (Verdict.USER_ERROR, 2)
    for end in ends.values():
        assert AttemptEnd.from_bytes(end.to_bytes()) == end
        assert "## Attempt 1: " in explain([end]) and end.job in explain([end])


def test_a_failure_is_read() -> None:
    cancelled = Failure.from_bytes(stored(LAYOUT.run("interrupted").failure("json")))
    failed = Failure.from_bytes(stored(LAYOUT.run("failed").failure("json")))
    assert (cancelled.verdict, failed.verdict) == (Verdict.CANCELLED, Verdict.USER_ERROR)
    assert failed.final and failed.step == "launch_tfjob"


def test_the_checkpoint_of_an_interrupted_run_is_the_newest() -> None:
    folder = STORED / "runs" / "interrupted" / "output" / "checkpoints"
    found = checkpoint_folder.read_newest(folder)
    # At the end of its sixth epoch, which is still to be evaluated.
    assert found and found.position == checkpoint_format.Position(126, 5, 21)
    assert [value.nbytes for _, value in found.variables if value.nbytes]
    found.check_fits(found.variables, found.settings)


def test_the_progress_of_a_training_is_read() -> None:
    training = report.parse(stored(LAYOUT.run("interrupted").progress).decode())
    assert len(training.epochs) == 5 and training.final == training.epochs[-1].metrics
    assert report.parse(stored(LAYOUT.run("finished").progress).decode()).seconds


def test_an_output_is_complete() -> None:
    store = Mock(read=stored)
    store.read_manifest = lambda address: Manifest.from_bytes(stored(address))
    assert Records(Mock(run=LAYOUT.run("finished"), store=store)).completed() == 1


def test_the_schema_and_statistics_of_a_dataset_are_read_and_its_shards_are_not() -> None:
    (found,) = STORED.glob("datasets/*")
    problem = problem_of(Dataset.load, found, kind=DataError)
    assert (problem.received, problem.expected) == ("codec 1", f"codec {CODEC_VERSION}")
    data = (found / "schema.json").read_bytes()
    schema = Schema.from_bytes(data)
    assert (len(schema.classes), sum(schema.rows.values())) == (2, 2000)
    assert schema.digest() == schema.schema_digest
    written = json.loads(schema.to_bytes())
    for split in written["splits"].values():
        assert split.pop("digests") == []
    assert written == json.loads(data)
    statistics = StatisticsDocument.from_bytes((found / "statistics.json").read_bytes())
    assert statistics.features.keys() == set(schema.names) and not statistics.also_in_train
    assert sum(statistics.label.counts["train"].values()) == statistics.rows["train"]
    later = Schema.from_bytes(json.dumps(json.loads(data) | {"later": [{}]}).encode())
    assert later == schema


def test_images_in_tfrecord_files_are_refused() -> None:
    codec = {"version": CODEC_VERSION, "layout": "encoded"}
    schema = Schema(task="classification", features=(), label=SchemaLabel("y"), codec=codec)
    problem = problem_of(schema.check_codec, "s3://b/datasets/d", kind=DataError)
    assert problem.received == f"codec {CODEC_VERSION} with the layout 'encoded'"
    replace(schema, codec=codec | {"layout": "parquet"}).check_codec("s3://b/datasets/d")
