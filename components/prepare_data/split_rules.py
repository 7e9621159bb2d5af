"""Decides which split a row belongs to, where its hash alone does not.

The split can come from a folder (`train/`, `validation/`, `test/`), from a column that names it,
from the hash of a group, or from a time. The row then gets a new hash: its own, scaled into the
range of its split. So the rows within a split stay in the order of their hashes. Called by the
tasks that read parts of the source.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kfp_tfjob.common.errors import DataError, Problem
from kfp_tfjob.common.formatting import listed
from kfp_tfjob.features.cells import shown_date
from kfp_tfjob.features.statistics import SPLITS
from kfp_tfjob.features.string_hashes import string_hashes
from kfp_tfjob.features.types.date import parse_forms
from kfp_tfjob.features.types.number import NUMBER, number_as_text, parse_number
from kfp_tfjob.options.data import DataOptions

from .columns_to_rows import texts_of
from .hashes import ROW_HASH_REVISION, limits_of, scaled, split_of
from .source.column_names import Columns
from .source.files import SPLITS as WORDS
from .source.files import Source
from .source.readers.arrow_table import Chunk
from .source.readers.open_table import open_table

log = logging.getLogger(__name__)

_BY_HASH = -1
_TRAIN, _VALIDATION, _TEST = range(3)
GROUP_REVISION = 2  # of `values_as_texts`; part of schema_digest with split.group
_WORD = re.compile(r"[^\W\d_]+")  # of a file's name: train in train-00001.csv
_OF_DATA = re.compile("(?<=.)(set|data|dataset|split|image|img|file)s?$")  # trainset
_AS_IT_IS = r"^(0|-?[1-9][0-9]*)$"


class SplitRules:
    """Places a source's rows, by the limits of `time_limits` with data_options.split.time.

    Attributes:
        is_needed: Whether anything else than the hash of a row decides.
        rule: The keys of data_options.split that decide.
        folders: The splits that have a folder, if folders decide.
        forms: The first time of each form, a date or a number, as text.

    Raises:
        DataError: Only some files are in folders that name a split.
    """

    def __init__(self, source: Source, options: DataOptions, limits: np.ndarray) -> None:
        self._options, self._format_of = options.split, options.format_of
        self._fractions = list(options.split.fractions.values())
        self._limits = limits
        DataError.raise_if(folder_problems(source, options))
        by_folder = _by_folder(source, options)
        self.folders = source.folder_splits if by_folder else frozenset()
        self.rule: dict[str, str | int] = {
            **options.split.extra,
            **({"folders": True} if by_folder else {}),
        }
        self.is_needed = bool(self.rule)
        self.forms: dict[str, str] = {}

    @property
    def comparable(self) -> dict[str, str | int]:
        """The rule with the revision of the hash that decides, for schema.json.

        Without the revision, a champion of an earlier version would be evaluated on rows that it
        was trained on.
        """
        if self._options.group:
            return self.rule | {"group_revision": GROUP_REVISION}
        if not self.rule or (self.folders and len(self.folders) < len(SPLITS)):
            return self.rule | {"row_revision": ROW_HASH_REVISION}
        return self.rule

    def splits(self, folder: str, chunk: Chunk, groups: np.ndarray | None = None) -> np.ndarray:
        """Return the split of each row, -1 where its hash decides; mark rows without a split.

        Args:
            folder: The split that the folder of the rows names, or empty.
            chunk: The rows.
            groups: The result of `group_hashes`.
        """
        by, rows = self._options, len(chunk.faults.lines)
        if by.column:
            return self._named(chunk, by.column)
        if groups is not None:
            return split_of(groups, self._fractions).astype(np.int8)
        if by.time:
            times = self.as_times(chunk, by.time)
            return np.searchsorted(self._limits, times, side="right").astype(np.int8)
        return np.full(rows, SPLITS.index(folder) if self.folders else _BY_HASH, np.int8)

    def _named(self, chunk: Chunk, name: str) -> np.ndarray:
        texts, codes = texts_of(chunk, name)
        words = [WORDS.get(text.strip().lower()) for text in texts]
        splits_of_words = np.array(
            [SPLITS.index(word) if word else _BY_HASH for word in words], np.int8
        )
        splits = splits_of_words[codes]
        unknown = (splits == _BY_HASH) & chunk.faults.good  # a missing value is marked already
        chunk.faults.mark(unknown, "split", name, lambda i: texts[codes[i]])
        return np.maximum(splits, 0)

    def group_hashes(self, chunk: Chunk) -> np.ndarray | None:
        """Return the hash of each row's group, and mark rows without one.

        Returns:
            uint64 of shape [rows]; None unless groups decide.
        """
        if not (name := self._options.group):
            return None
        texts, codes = texts_of(chunk, name, self._format_of(name))
        return string_hashes(values_as_texts(texts), self._options.salt)[codes]

    def as_times(self, chunk: Chunk, name: str) -> np.ndarray:
        """Return float64 of shape [rows]: numbers as they are, dates as microseconds."""
        texts, codes = texts_of(chunk, name, self._format_of(name))
        days, is_day = parse_forms(pa.array(texts, pa.string()))
        numbers = [parse_number(text) for text in texts]
        is_number = np.array([number is not None for number in numbers], bool)
        faults = chunk.faults
        wrong = ~(is_day | is_number)[codes] & faults.good
        faults.mark(wrong, "date", name, lambda i: texts[codes[i]])
        for form, mask in (("a date", is_day[codes]), ("a number", is_number[codes])):
            if form not in self.forms and mask.any():
                i = int(mask.argmax())
                where = f"{faults.file}, line {faults.lines[i]:,}"
                self.forms[form] = f"{form}: {texts[codes[i]]} in {where}"
        times = np.where(is_day, days, np.array([number or 0 for number in numbers], float))
        return times[codes]


def hashes_in(
    hashes: np.ndarray, splits: np.ndarray, fractions: list[float], folders: frozenset[str]
) -> np.ndarray:
    """Return hashes that lead to these splits: uint64 of shape [rows].

    If folders decide, rows of train are divided among train and the splits without a folder.
    """
    splits = splits.copy()
    if folders and (absent := {i for i, word in enumerate(SPLITS) if word not in folders}):
        among = sorted({_TRAIN, *absent})
        shares = [fractions[i] for i in among]
        chosen = split_of(hashes, [share / sum(shares) for share in shares])
        splits = np.where(splits == _TRAIN, np.array(among, np.int8)[chosen], splits)
    limits = [0, *limits_of(fractions), 2**64]
    placed = hashes.copy()
    for i in range(len(SPLITS)):
        mask = splits == i
        width = limits[i + 1] - limits[i]
        placed[mask] = np.uint64(limits[i]) + scaled(hashes[mask], width)
    return placed


def time_limits(source: Source, options: DataOptions, folder: Path, block: int) -> np.ndarray:
    """Return the times at which validation and test begin.

    It needs 8 bytes on local disk for each row.

    Raises:
        DataError: A file cannot be read.
    """
    name, rows, path = options.split.time, 0, folder / "times"
    rules = SplitRules(source, options, np.empty(0))
    with open(path, "wb") as spill:
        for file in source.files:
            with open_table(source, file, options, block) as table:
                if name not in table.names:
                    return np.empty(0)  # `choose` says so
                for chunk in table.chunks(Columns((), name)):
                    times = rules.as_times(chunk, name)
                    times = times[chunk.faults.good]
                    spill.write(times.data)  # `tofile` would not notice that a disk is full
                    rows += len(times)
    if len(rules.forms) > 1:
        raise DataError(
            Problem(
                f"data_options.split.time names {name!r}, which contains dates and numbers",
                received="; ".join(rules.forms.values()),
                expected="only dates, or only numbers",
                fix=f"write all values of {name!r} as dates, or all as numbers",
                path="data_options.split.time",
            )
        )
    if not rows:
        return np.zeros(2)
    fractions = list(options.split.fractions.values())
    times = np.memmap(path, np.float64, "r+", shape=(rows,))
    times.sort()  # on local disk
    places = [sum(fractions[: i + 1]) * rows for i in range(2)]
    limits = times[[min(int(round(place)), rows - 1) for place in places]].copy()
    del times
    path.unlink()
    log.info("validation begins at %s of %r, test at %s", limits[0], name, limits[1])
    return limits


def values_as_texts(texts: list[str]) -> list[str]:
    """Return the same text for every spelling of a value: 7 and 7.0, or one time in two zones."""
    spellings, column = list(texts), pa.array(texts, pa.string())
    days, is_day = parse_forms(column)
    for i in np.flatnonzero(is_day).tolist():
        spellings[i] = shown_date(int(days[i]))
    as_it_is = pc.match_substring_regex(column, _AS_IT_IS)
    odd = pc.and_not(pc.match_substring_regex(column, NUMBER), as_it_is)
    for i in np.flatnonzero(odd.to_numpy(zero_copy_only=False)).tolist():
        spellings[i] = number_as_text(texts[i])
    flag = pc.is_in(pc.utf8_lower(column), value_set=pa.array(["true", "false"]))
    for i in np.flatnonzero(flag.to_numpy(zero_copy_only=False)).tolist():
        spellings[i] = texts[i].lower()
    return spellings


def _by_folder(source: Source, options: DataOptions) -> bool:
    return source.splits_by_folder and options.split.folders and not options.split.extra


def folder_problems(source: Source, options: DataOptions) -> list[Problem]:
    """Return a problem if names of splits do not divide the files, or only some of them."""
    if options.split.extra or not options.split.folders:
        return []
    if source.splits_by_folder:
        outside = next((file.name for file in source.files if not file.split), "")
        if not outside:
            return []
        inside = ", ".join(sorted(source.folder_splits))
        summary = "only some of the files are in folders that name a split"
        received = f"folders for {inside}, but also {outside}"
    else:
        by_words = {_words(name): name for name in sorted(_names(source), reverse=True)}
        if len(by_words) < 2:  # what all files share does not divide them
            names = sorted(_names_of_any_depth(source), reverse=True)
            by_words = {_inner_words(name): name for name in names}
            if len(by_words.keys() - {()}) < 2:
                return []
        summary = (
            "folder names in data_uri look like splits, but do not divide its files consistently"
        )
        received = listed(sorted(by_words.values()), 5)
    return [
        Problem(
            summary,
            received=received,
            expected="every file in train/, validation/ or test/",
            fix="rename the folders or move the files, give a table's folders as addresses such as"
            ' "DATA/train, DATA/test", or set data_options.split={"folders": false} to divide the'
            " rows of all of them",
            path="data_uri",
        )
    ]


def ignored_folders(source: Source, options: DataOptions) -> list[str]:
    """Return a line if folders name splits and another rule decides."""
    by = options.split
    if not (by.extra and by.folders and source.splits_by_folder):
        return []
    (key,) = by.extra
    return [
        f"the folders of {listed(sorted(source.folder_splits), 3)} do not decide the split, because"
        f" data_options.split.{key} does; if this is right, set data_options.split.folders=false"
    ]


def _names(source: Source) -> Iterable[str]:
    """Return the names that may mean a split; of images, folders with a folder in them."""
    names = (file.name for file in source.files)
    if source.pictures is None:
        return names
    return {name[: name.rfind("/") + 1] for name in names if name.count("/") > 1}


def _words(name: str) -> tuple[str, ...]:
    """Return the splits in a name: of its folders (`test`, `part=test`) and of its file."""
    *folders, last = name.lower().split("/")
    parts = [*(folder.rpartition("=")[2] for folder in folders), *_WORD.findall(last)]
    return tuple(WORDS[part] for part in parts if part in WORDS)


def _names_of_any_depth(source: Source) -> Iterable[str]:
    """Return the names that may contain the word of a split; of images, all folders."""
    names = (file.name for file in source.files)
    return names if source.pictures is None else {name[: name.rfind("/") + 1] for name in names}


def _inner_words(name: str) -> tuple[str, ...]:
    """Return the splits in words of a name, such as seg_train, train-data or TestSet.

    They count only if names contain another split too: a folder may be called train_delays.
    """
    words = (_OF_DATA.sub("", word) for word in _WORD.findall(name.lower()))
    return tuple(WORDS[word] for word in words if word in WORDS)
