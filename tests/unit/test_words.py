"""Words of free text: what a word is, and what is learned from train."""

import unicodedata
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest

from kfp_tfjob.common.errors import DataError
from kfp_tfjob.components.prepare_data.column_profile import ColumnProfile
from kfp_tfjob.components.prepare_data.kinds import Feature, decide
from kfp_tfjob.features.cells import Cells
from kfp_tfjob.features.types import words
from kfp_tfjob.features.types.base import Summary, TrainValues
from kfp_tfjob.features.types.words import Words, WordTally, words_of
from kfp_tfjob.options.data import DataOptions
from tests.unit.prepared_files import options


def test_a_word_is_letters_marks_and_digits_in_lower_case() -> None:
    texts = [
        "Don't WIN 50% (ÉCOLE)",
        "नमस्ते दुनिया",
        "",
        "🙂",
        "one\ntwo\u2028three\0four",
        "東京 2024",
    ]
    assert list(words_of(texts)) == [
        ["don", "t", "win", "50", "école"],
        ["नमस्ते", "दुनिया"],
        [],
        [],
        ["one", "two", "three", "four"],
        ["東京", "2024"],
    ]
    assert list(words_of([])) == []


def test_the_table_is_that_of_unicode() -> None:
    """Python may have an earlier or a later Unicode, in which other code points are unassigned."""
    different = []
    for point in [*range(0xD800), *range(0xE000, 0x110000)]:
        character = chr(point)
        category = unicodedata.category(character)
        block = words.letters().blocks[point >> 8]
        distance = words.letters().distances[block, point & 255]
        if category == "Cn":
            continue
        lower = character.lower() if len(character.lower()) == 1 else character.lower()[0]
        expected = ord(lower) - point if category[0] in "LMN" else words._SEPARATOR
        if distance != expected:
            different.append(f"{point:X}")
    assert len(different) < 1 + 2_000 * (unicodedata.unidata_version > "15.1.0"), different


def counted(texts: Sequence[str], labels: Sequence[int] = (), classes: Sequence[str] = ()):
    tally = Words.tally(classes)
    encoded = pa.array([text or None for text in texts], pa.string()).dictionary_encode()
    codes = encoded.indices.fill_null(-1).to_numpy()
    tally.add(encoded.dictionary.to_pylist(), codes, np.array(labels or [0] * len(texts)))
    return tally


def fitted(tally: WordTally, **given: object) -> Words:
    values = TrainValues(None, np.zeros(0), tally=tally)
    return Words.fit("x", values, options(**given))


TEXTS = ["win free money", "free win", "call me later", "call free", "", "later"]


def test_the_vocabulary_has_the_words_of_the_most_rows() -> None:
    column = fitted(counted(TEXTS))
    assert (column.vocabulary, column.length) == (("free", "call", "later", "win"), 3)
    every = fitted(counted(TEXTS), min_count=1, words={"vocabulary": 5, "length": 7})
    assert every.vocabulary == ("free", "call", "later", "win", "me")
    assert (every.length, every.size, len(every.packed_names)) == (7, 7, 7)
    assert column.learned == {"vocabulary": column.vocabulary, "length": 3}
    assert column.codes_of(["free win", "Free! prize", "a b c", ""]).tolist() == [1, 51, 101, 1]


def test_a_word_counts_once_in_a_row() -> None:
    column = fitted(counted(["a a a a b", "b c", "c b"]))
    assert column.vocabulary == ("b", "c")


def test_the_length_is_that_of_most_rows() -> None:
    def length(lengths: Sequence[int]) -> int:
        return fitted(counted(["a " * number for number in lengths]), min_count=1).length

    texts = ["a b"] * 95 + ["c " * 40] * 5
    assert fitted(counted(texts)).length == 2
    assert fitted(counted([*texts, "d " * 50])).length == 40
    assert fitted(counted(["a b " * 900] * 3)).length == 256


@pytest.mark.parametrize("texts", [["one"] * 30, ["\U0001f642"] * 30, [""] * 30, ["a b c", "d e"]])
def test_a_column_with_too_few_words_is_refused(texts: list[str]) -> None:
    with pytest.raises(DataError) as caught:
        fitted(counted(texts), drop=["z"])
    (problem,) = caught.value.as_problems
    assert "'x'" in problem.what and problem.path == "data_options.types"
    assert 'data_options.drop=["z", "x"]' in problem.fix
    assert 'data_options.types={"x": "category"}' in problem.fix


@pytest.mark.parametrize(
    "option", [{"vocabulary": 1}, {"length": 0}, {"length": "long"}, 3, {"n": 1}]
)
def test_wrong_options_are_refused(option: object) -> None:
    with pytest.raises(Exception, match="data_options.words") as caught:
        options(words=option)
    assert len(caught.value.as_problems) == 1


def test_tallies_merge_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = counted(TEXTS[:3], [0, 0, 1], "ab"), counted(TEXTS[3:], [1, 1, 1], "ab")
    whole = counted(TEXTS, [0, 0, 1, 1, 1, 1], "ab")
    first.merge(second)
    assert vars(first)["words"] == whole.words and first.rows.tolist() == whole.rows.tolist()
    assert first.lengths.tolist() == whole.lengths.tolist()
    monkeypatch.setattr(words, "_MOST_COUNTED", 6)
    pruned = counted(TEXTS, [0, 0, 1, 1, 1, 1], "ab")
    assert sorted(pruned.totals) == ["call", "free", "later", "win"]
    assert pruned.dropped == 2


def test_the_statistics_name_the_words_that_tell_the_classes_apart() -> None:
    texts = ["win the money now"] * 40 + ["call the office now"] * 60
    tally = counted(texts, [1] * 40 + [0] * 60, ["ham", "spam"])
    column = fitted(tally)
    moments = Summary(100, None, None, None, np.zeros(0), np.zeros(0), tally)  # type: ignore[arg-type]
    found = column.describe(moments)
    assert (found.vocabulary, found.distinct, found.length, found.unknown) == (6, 6, 4, 0)
    told = [("call", "ham"), ("office", "ham"), ("money", "spam"), ("win", "spam")]
    assert [(word, name) for word, name, *_ in found.telling] == told
    assert found.telling[0][2:] == (1, 0)
    assert "spam" in found.words


def kind_of(texts: Sequence[str]) -> str:
    profile = ColumnProfile("x")
    column = pa.array([text.encode() for text in texts], pa.binary())
    profile.add(Cells(column, pa.array([""])), "f", np.arange(len(texts)))
    kinds, problems = decide([profile], DataOptions())
    assert not problems
    return kinds.features[0].kind if kinds.features else kinds.left_out[0].reason


VERBS, NOUNS = ["see", "call", "buy", "find", "win"], ["the house", "my car", "a prize", "our dog"]


def sentences(rows: int) -> list[str]:
    return [
        f"please {VERBS[i % 5]} {NOUNS[i // 5 % 4]} or {VERBS[i // 20 % 5]} {NOUNS[i // 100 % 4]}"
        for i in range(rows)
    ]


def test_sentences_are_free_text() -> None:
    assert kind_of(sentences(200)) == "words"
    assert kind_of([f"{text}!" * 12 for text in sentences(200)]) == "words"  # of 500 characters
    assert kind_of([*sentences(200), *["https://example.org/a b"] * 40, *[""] * 300]) == "words"
    assert kind_of(sentences(19)) == "category"  # too few


@pytest.mark.parametrize(
    "texts",
    [
        [f"/home/my user/some folder/file {i}.txt" for i in range(60)],
        [f"C:\\Program Files\\My Program\\file {i}" for i in range(60)],
        [f"https://example.org/some page/of a site/{i}" for i in range(60)],
        [f"{i} Main Street, Springfield, Illinois" for i in range(60)],
        [f"Lange Straße {i}, 80331 München" for i in range(60)],
        [f"name.{i}@example.org and more" for i in range(60)],
        [f"{i} {i + 1} {i + 2} kg" for i in range(60)],
        [f"a{i} b{i} c{i} d{i}" for i in range(60)],  # words that do not repeat
        [f"red{i}" for i in range(60)],
        [f"{i:x} {i * 7:x}" for i in range(60)],
    ],
)
def test_paths_addresses_and_numbers_are_no_free_text(texts: list[str]) -> None:
    assert kind_of(texts) != "words"


def test_sentences_may_have_dates_and_alternatives() -> None:
    texts = sentences(200)
    assert kind_of([f"{text} on 12/05/2024 at 10:30" for text in texts]) == "words"
    assert kind_of([f"he/she may {text} and/or wait" for text in texts]) == "words"


def test_many_long_texts_are_split_a_few_at_a_time() -> None:
    texts = [f"{'word ' * 20_000}{i}" for i in range(12)] + ["", "b a"]
    assert list(words_of(texts)) == [["word"] * 20_000 + [str(i)] for i in range(12)] + [
        [],
        ["b", "a"],
    ]


def test_sentences_that_repeat_are_a_category() -> None:
    assert kind_of(sentences(20) * 10) == "category"


def test_a_feature_of_words_has_a_code_for_a_missing_value() -> None:
    assert Feature("x", "words", None, 3).takes_missing
