"""The records by which data_options.append finds earlier datasets."""

from __future__ import annotations

import logging

import pytest

from kfp_tfjob.components.prepare_data.appending import kept
from kfp_tfjob.components.prepare_data.appending.groups import Group, family_of
from kfp_tfjob.components.prepare_data.appending.records import Records
from kfp_tfjob.components.prepare_data.files import Source, SourceFile
from kfp_tfjob.options.data import DataOptions
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.errors import ConfigurationError, DataError
from kfp_tfjob.storage.layout import GROUP_INDEX, Layout
from kfp_tfjob.storage.store import Store

OPTIONS = DataOptions(append=True)
MALFORMED = [
    b"",
    b"[]",
    b'{"dataset": "x"}',
    b'{"dataset": ["x"], "groups": []}',
    b'{"dataset": "0123456789abcdef0123456789abcdef", "groups": null}',
    b'{"dataset": "0123456789abcdef0123456789abcdef", "groups": [["g"]]}',
    b'{"dataset": "../../models", "groups": ["g"]}',
    b"\xff\xfe",
]


def name(number: int) -> str:
    return f"{number:032x}"


def records(store: Store, base: S3Address, uri: str = "s3://data/numbers", **more) -> Records:
    source = Source(uri, (SourceFile("a.csv", 1, S3Address("data"), ""),), store)
    return Records(store, Layout(base), source, OPTIONS.model_copy(update=more), "y")


def found(records: Records, first: str = "none") -> list[str]:
    return [record.dataset for record in records.newest(first)]


def test_datasets_of_other_folders_push_none_out_of_sight(store, base):
    records(store, base).add(name(1), ["first", "second"])
    for number in range(2, 14):
        records(store, base, f"s3://data/other{number}").add(name(number), [f"group{number}"])
    assert found(records(store, base)) == [name(1)]
    assert found(records(store, base, "s3://data/numbers/*.csv")) == [name(1)]
    assert found(records(store, base, on_bad_row="drop")) == []
    assert found(records(store, base, "s3://elsewhere"), "first") == [name(1)]


def test_the_newest_come_first_and_each_once(store, base):
    for number in (1, 2, 3, 2):
        records(store, base).add(name(number), ["first", f"group{number}"])
    assert found(records(store, base), "first") == [name(3), name(2), name(1)]


@pytest.mark.parametrize("body", MALFORMED)
def test_a_malformed_record_is_left_out(store, base, body):
    family = family_of(OPTIONS, "y", "s3://data/numbers")
    store.write(Layout(base).appended_record(family, 7), body)
    records(store, base).add(name(1), ["first"])
    assert found(records(store, base)) == [name(1)]


@pytest.mark.parametrize("method", ["read", "create", "numbers"])
@pytest.mark.parametrize("error", [ConfigurationError, DataError])
def test_a_store_that_refuses_records_ends_no_step(store, base, monkeypatch, caplog, method, error):
    folder = Layout(base).dataset(name(1))
    store.write(folder / GROUP_INDEX, b'{"groups": [{"key": "first"}]}')
    records(store, base).add(name(2), ["first"])

    def refuse(*given):
        raise error("it may not")

    monkeypatch.setattr(Store, method, refuse)
    group = Group(0, Source("", (), store), "other")
    with caplog.at_level(logging.INFO):
        kept.remember(store, records(store, base), folder)
        assert kept.find(store, Layout(base), records(store, base), [group], name(3)) is None
    assert "no later run can append" in caplog.text
    assert "no earlier dataset has these files" in caplog.text


@pytest.mark.parametrize("index", [b"[]", b'{"groups": []}', b'{"groups": [{}]}', b"{"])
def test_an_index_that_cannot_be_read_ends_no_step(store, base, caplog, index):
    folder = Layout(base).dataset(name(1))
    store.write(folder / GROUP_INDEX, index)
    kept.remember(store, records(store, base), folder)
    assert "no later run can append" in caplog.text


@pytest.mark.parametrize(
    ("others", "said"),
    [
        ([], "this version has prepared none of s3://data/numbers with the same label"),
        ([name(1)], "1 dataset of s3://data/numbers with the same label and data_options has"),
        ([name(1), name(2)], "2 datasets of s3://data/numbers with the same label"),
    ],
)
def test_the_log_says_why_all_files_are_read(store, base, caplog, others, said):
    for other in others:
        records(store, base).add(other, ["another group"])
    group = Group(0, Source("", (), store), "first")
    with caplog.at_level(logging.INFO):
        kept.find(store, Layout(base), records(store, base), [group], name(9))
    assert f"no earlier dataset has these files, so all of them are read: {said}" in caplog.text
