"""data_options: what is refused, what is cast, and what names a dataset."""

import pytest

from tests.problems import problem_of, problems_of
from tests.unit.prepared_files import options


@pytest.mark.parametrize(
    "value, said",
    [
        ({"colums": ["a"]}, "'columns'"),
        ({"task": "cluster"}, '"auto", "classification" or "regression"'),
        ({"split": {"train": 0.9}}, "0.9 + 0.15 + 0.15 = 1.2"),
        ({"split": {"train": 1, "validation": 0, "test": 0}}, "data_options.split.train"),
        ({"split": {"salt": ""}}, "1 to 64 bytes"),
        ({"split": {"slat": "x"}}, "'salt'"),
        ({"on_bad_row": "skip"}, '"fail" or "drop"'),
        ({"max_bad_fraction": 1.5}, "data_options.max_bad_fraction"),
        ({"delimiter": ";;"}, "one character"),
        ({"delimiter": '"'}, "one character"),
        ({"names": []}, "data_options.names"),
        ({"names": "a"}, '["a"]'),
        ({"names": ["a", ""]}, "data_options.names"),
        ({"names": ["a", " b"]}, "data_options.names"),
        ({"names": ["a", "a"]}, "data_options.names"),
        ({"names": ["a", "b"], "header": True}, "data_options.header"),
        ({"header": False}, "data_options.header"),
        ({"columns": "a"}, '["a"]'),
        ({"columns": []}, "data_options.columns"),
        ({"drop": ["a", "a"]}, "data_options.drop"),
        ({"columns": ["a"], "drop": ["a"]}, "columns and drop"),
    ],
)
def test_what_is_refused(value, said):
    assert any(said in str(problem) for problem in problems_of(options, **value))


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"drop": ["a", "b\ud800"]}, "data_options.drop"),
        ({"split": {"group": "\ud800"}}, "data_options.split.group"),
        ({"types": {"\ud800": "text"}}, "data_options.types"),
        ({"\ud800": "\ud800"}, "data_options"),
    ],
)
def test_half_of_a_character_is_refused(value, path):
    problem = problem_of(options, **value)
    assert problem.path == path and "\\ud" in problem.received
    str(problem).encode()


def test_a_file_without_a_header_may_be_declared_twice():
    assert options(names=["a", 2019.0], header=False).names == ("a", "2019")


def test_what_kfp_does_to_numbers_changes_nothing():
    plain = options(columns=["1990", "a"], split={"salt": "3"}, max_bad_fraction=0)
    through_kfp = options(columns=[1990.0, "a"], split={"salt": 3.0}, max_bad_fraction=0.0)
    assert plain == through_kfp
    assert plain.columns == ("1990", "a")


def test_the_dataset_digest_depends_on_all_that_changes_the_dataset():
    def digest(source="s", label="y", **value):
        return options(**value).dataset_digest(source, label)

    assert len(digest()) == 32
    assert digest() == digest(split={"train": 0.7}) == digest(task="auto")
    assert digest(drop=["a", "b"]) == digest(drop=["b", "a"])
    # `header` only allows a dataset.
    assert digest() == digest(header=True) == "3a5379ac2b80f7092d3274d90689bad1", (
        "every dataset of every team gets a new name and is prepared again: this may change only"
        " with CODEC_VERSION, and so may the keys of data_options"
    )
    assert digest(delimiter="tab", encoding="latin-1") == "ccb79c5a20d288d2233d4d8ba666c68f"
    different = [
        digest(),
        digest(source="t"),
        digest(label="z"),
        digest(task="regression"),
        digest(columns=["a", "b"]),
        digest(columns=["b", "a"]),
        digest(split={"salt": "1"}),
        digest(on_bad_row="drop"),
        digest(null_values=["?"]),
        digest(delimiter="space"),
        digest(delimiter="blanks"),
        digest(names=["a", "y"]),
        digest(names=["y", "a"]),
    ]
    assert len(set(different)) == len(different)
