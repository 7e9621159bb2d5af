"""Files of text: packed, in other encodings, damaged, or made to hurt."""

import gzip
from pathlib import Path

import pyarrow as pa
import pytest

from kfp_tfjob.common.errors import ConfigurationError, DataError, Problem
from kfp_tfjob.components.prepare_data.source.resolve import check_header, list_source
from kfp_tfjob.storage.store import Store
from tests.fuzz.bounds import bounded
from tests.unit.prepared_files import check, names_of, options, read

STORE = Store("http://127.0.0.1:1")

TEXT = "größe,y\n" + "".join(f"{i},{'jä' if i % 2 else 'nö'}\n" for i in range(3_000))
LABELS = ["nö", "jä"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "f.csv"


def zstd(data: bytes) -> bytes:
    return pa.compress(data, codec="zstd", asbytes=True)


@pytest.mark.parametrize(
    ("pack", "encoding", "given"),
    [
        (bytes, "utf-8", {}),
        (gzip.compress, "utf-8-sig", {}),
        (zstd, "utf-8-sig", {"encoding": "utf-8"}),
        (bytes, "utf-16", {}),
        (gzip.compress, "utf-16", {}),
        (zstd, "utf-16", {"encoding": "UTF-16"}),
        (gzip.compress, "utf-16-be", {"encoding": "utf-16-be"}),
        (zstd, "utf-32", {}),
        (bytes, "latin-1", {"encoding": "latin-1"}),
        (gzip.compress, "cp1252", {"encoding": "windows-1252"}),
    ],
)
def test_packed_text_in_any_encoding_is_read_letter_by_letter(
    path: Path, pack, encoding: str, given: dict
) -> None:
    path.write_bytes(pack(TEXT.encode(encoding)))
    assert check(path, **given) == []
    found = read(path, 1 << 12, **given)
    assert [item.name for item in found.kinds.features] == ["größe"]
    assert list(found.labels.codes) == LABELS
    assert found.faults.seen == 3_000 and not found.faults.bad


def test_files_that_are_packed_twice_in_a_row_are_one_text(path: Path) -> None:
    head, tail = TEXT.encode()[:9_000], TEXT.encode()[9_000:]
    path.write_bytes(zstd(head) + zstd(tail))
    assert read(path).faults.seen == 3_000


@pytest.mark.parametrize(
    ("pack", "harm"),
    [
        (gzip.compress, "cut"),
        (gzip.compress, "flipped"),
        (gzip.compress, "followed"),
        (zstd, "cut"),  # a checksum is optional in zstd, and Arrow writes none
        (zstd, "followed"),
    ],
)
def test_a_damaged_archive_is_named(path: Path, pack, harm: str) -> None:
    data = pack(TEXT.encode())
    half = len(data) // 2
    harmed = {
        "cut": data[:half],
        "flipped": data[:half] + bytes([data[half] ^ 255]) + data[half + 1 :],
        "followed": data + b"more",
    }
    path.write_bytes(harmed[harm])
    with pytest.raises(DataError, match="damaged"):
        read(path)


@pytest.mark.parametrize("piece", [b"\0", b"a,y\n", b"1,", b"\n"], ids=repr)
def test_a_small_file_that_unpacks_to_much_costs_bounded_memory(path: Path, piece: bytes) -> None:
    with pa.output_stream(str(path), compression="zstd") as file:
        block = piece * ((1 << 20) // len(piece))
        for _ in range(200):
            file.write(block)
    assert path.stat().st_size < 100_000
    with bounded(seconds=10, memory=300 << 20):
        assert bool(check(path)) == (piece != b"a,y\n")  # rows of texts are a table


def test_text_that_is_not_in_the_encoding_is_refused_with_its_line(path: Path) -> None:
    path.write_bytes(TEXT.encode("utf-16") + b"\0\xd8a\0")
    with pytest.raises(DataError, match=r"f\.csv, line 3002: .*utf-16-le"):
        read(path)


def test_latin_1_without_its_name_is_refused_and_never_garbled(path: Path) -> None:
    path.write_bytes(TEXT.encode("latin-1"))
    (said,) = check(path)
    assert "set data_options.encoding" in said
    path.write_bytes(TEXT.replace("größe", "size").encode("latin-1"))
    found = read(path)
    assert found.faults.counts() == {"encoding": 3_000}
    assert "UTF-8" in str(found.faults.problems()[0])


def problem_of_file(path: Path, **given: object) -> Problem | None:
    """Return the only problem that preflight or the reading of a file finds; None without one."""
    found = check_header(list_source(STORE, str(path), options(**given)), "y", options(**given))
    if not found:
        try:
            read(path, **given)
        except DataError as error:
            found = list(error.problems)
    assert len(found) < 2, found
    return found[0] if found else None


WINDOWS = "preis €,y\n" + "".join(f"{i},{'“jä”' if i % 2 else 'nö –'}\n" for i in range(300))


@pytest.mark.parametrize("given", [{}, {"encoding": "latin-1"}, {"encoding": "iso-8859-15"}])
def test_text_of_windows_is_read_with_the_encoding_that_the_message_names(path, given) -> None:
    """As latin-1 it was read without a word, with characters that no request has."""
    path.write_bytes(WINDOWS.encode("cp1252"))
    problem = problem_of_file(path, **given)
    assert problem and (problem.path, problem.suggestion) == ("data_options.encoding", "cp1252")
    found = read(path, encoding=problem.suggestion)
    assert names_of(found) == ["preis €"]
    assert list(found.labels.codes) == ["nö –", "“jä”"]


def test_a_character_of_windows_anywhere_in_latin_1_is_refused_with_its_line(path: Path) -> None:
    rows = [f"{i},{'jä' if i % 2 else 'nö'}" for i in range(200_000)]
    rows[150_000] += "…"  # behind the first piece of the file
    path.write_bytes("\n".join(["größe,y", *rows, ""]).encode("cp1252"))
    with pytest.raises(DataError, match="line 150002"):
        read(path, encoding="latin-1")
    path.write_bytes("şey,y\n1,‘a’\n".encode("cp1254"))
    problem = problem_of_file(path, encoding="iso-8859-9")
    assert problem and problem.suggestion == "cp1254"


@pytest.mark.parametrize(
    ("stored", "encoding"),
    [
        ("utf-8", "latin-1"),
        ("utf-8", "cp1252"),
        ("utf-8", "mac-roman"),
        ("utf-8", "shift-jis"),
        ("utf-8", "gb18030"),
        ("utf-8-sig", "latin-1"),
        ("utf-16", "latin-1"),
        ("utf-16", "utf-8"),
        ("utf-16", "utf-16-be"),
    ],
)
def test_an_encoding_that_the_bytes_contradict_is_refused(path, stored, encoding) -> None:
    """Any bytes are text in most encodings: grÃ¶ÃŸe, or a column called ï»¿a."""
    path.write_bytes(TEXT.encode(stored))
    problem = problem_of_file(path, encoding=encoding)
    assert problem and (problem.path, problem.suggestion) == ("data_options.encoding", "auto")
    assert list(read(path, encoding=problem.suggestion).labels.codes) == LABELS


@pytest.mark.parametrize("end", range(4))
def test_a_letter_at_the_end_of_a_piece_is_not_taken_for_utf_8(path: Path, end: int) -> None:
    head = "a,y\n" + "1,u\n" * ((1 << 18) - 2)  # a piece has 1 MiB
    path.write_bytes((head + "1,äöü\n"[end:].rjust(6, "1") + "1,ö\n").encode("latin-1"))
    assert read(path, encoding="latin-1").labels.codes


@pytest.mark.parametrize("encoding", ["shift-jis", "mac-roman", "euc-jp"])
def test_other_encodings_are_read_when_they_are_named(path: Path, encoding: str) -> None:
    text = "größe,y\n1,ä\n2,ö\n" if encoding == "mac-roman" else "データ,y\n1,はい\n2,いいえ、\n"
    path.write_bytes(text.encode(encoding))
    problem = problem_of_file(path)
    assert problem and problem.path == "data_options.encoding"
    if encoding == "shift-jis":
        assert problem.suggestion == "", "these bytes are not all letters of Windows"
    found = read(path, encoding=encoding)
    assert f"{names_of(found)[0]},y" == text.partition("\n")[0]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("order", ["utf-16-le", "utf-16-be"])
def test_utf_16_without_a_mark_is_recognised_by_its_header(path: Path, order, end) -> None:
    path.write_bytes(f"a,y{end}1,u{end}2,v{end}".encode(order))
    problem = problem_of_file(path)
    assert problem and (problem.path, problem.suggestion) == ("data_options.encoding", order)
    assert problem_of_file(path, encoding=order) is None


def test_a_nul_is_a_fault_of_its_row(path: Path) -> None:
    path.write_bytes(b"a,y\n1,u\n2\0,v\n3,w\0\n4,v\n")
    found = read(path)
    assert [(f.line, f.column, f.rule) for f in found.faults.examples] == [
        (3, "a", "nul"),
        (4, "y", "nul"),
    ]
    assert list(found.labels.codes) == ["u", "v"]


@pytest.mark.parametrize(
    ("head", "words"),
    [
        (b"BZh91AY", "bzip2"),
        (b"\xfd7zXZ\0", "xz"),
        (b"Obj\x01", "Avro"),
        (b"ORC", "ORC"),
        (b"\x89HDF\r\n", "HDF5"),
        (b"SQLite format 3\0", "an SQLite database"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1", "an old Excel or Office file"),
        (b"FEA1", "an old Feather file"),
        (b"%PDF-1.7\n", "a PDF"),
        (b"@RELATION iris\n@ATTRIBUTE a REAL\n", "ARFF"),
        (b"% 1. Title\n%\n\n@relation iris\n", "ARFF"),
        (b"-1 1:0.5 7:-2e3\n+1 2:1\n", "LIBSVM"),
        (b"3 qid:1 1:0.5 # a comment\n", "LIBSVM"),
        (b"\x80\x04\x95\x10\0\0\0", "a pickle"),
        (b"\x80\x03}q\0", "a pickle"),
        (gzip.compress(b"RDX3\nX\n", mtime=0), "a file of R"),
        (b"\0\0\0\0\0\0\0\0DUCK", "a DuckDB database"),
        (b"<stata_dta><header>", "a Stata file"),
        (b"r\x02\x01\x00\x08\x00X\x02\x00\x00", "a Stata file"),  # as pandas writes it
        (b"s\x01\x01\x00", "a Stata file"),
        (b"<table border=1>\n<tr>", "HTML or XML"),
        (b"version https://git-lfs.github.com/spec/v1\n", "a pointer of Git LFS"),
        (b"\n<!DOCTYPE html>\n<html>", "HTML or XML: <!DOCTYPE html> <html>"),
        (b"<?xml version='1.0'?><Error><Code>AccessDenied</Code>", "Error><Code>AccessDenied"),
        (gzip.compress(b"a.csv".ljust(257, b"\0") + b"ustar\00000", mtime=0), "a tar archive"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_other_formats_are_refused_by_name(path: Path, head: bytes, words: str) -> None:
    path.write_bytes(head if head.startswith(b"\x1f\x8b") else head + b"a,y\n1,u\n")
    (said,) = check(path)
    assert words in said and "Fix:" in said
    if "Excel" in words:
        assert "as CSV" in said and "data_options.reader" in said


def test_an_encoding_that_does_not_exist_is_refused() -> None:
    for name in ("latin-99", "hex", "rot13", ""):
        with pytest.raises(ConfigurationError, match="encoding"):
            options(encoding=name)
    assert options(encoding="Latin1") == options(encoding="latin-1")
