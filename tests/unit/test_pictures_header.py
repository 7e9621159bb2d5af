"""What the bytes of an image say, and which files are none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from kfp_tfjob.components.prepare_data.images.header import Header, Unusable, decoding_fault, look
from tests.unit.picture_files import SIZE, deep, drawn, encoded, png_of_size

COLOUR = drawn()
TURNED = Image.Exif()
TURNED[0x0112] = 6
KINDS = {
    "JPEG colour": (encoded(COLOUR), "JPEG", "colour"),
    "JPEG progressive": (encoded(COLOUR, progressive=True), "JPEG", "colour"),
    "JPEG grey": (encoded(COLOUR.convert("L")), "JPEG", "grey"),
    "JPEG CMYK": (encoded(COLOUR.convert("CMYK")), "JPEG", "CMYK"),
    "JPEG with a tail": (encoded(COLOUR) + bytes(100), "JPEG", "colour"),
    "PNG colour": (encoded(COLOUR, "PNG"), "PNG", "colour"),
    "PNG grey": (encoded(COLOUR.convert("L"), "PNG"), "PNG", "grey"),
    "PNG palette": (encoded(COLOUR.convert("P"), "PNG"), "PNG", "palette"),
    "PNG one bit": (encoded(COLOUR.convert("1"), "PNG"), "PNG", "grey"),
    "PNG grey alpha": (encoded(COLOUR.convert("LA"), "PNG"), "PNG", "grey with alpha"),
    "PNG alpha": (encoded(COLOUR.convert("RGBA"), "PNG"), "PNG", "colour with alpha"),
    "PNG transparent": (encoded(COLOUR, "PNG", transparency=(0, 0, 0)), "PNG", "colour with alpha"),
    "PNG transparent palette": (
        encoded(COLOUR.convert("P"), "PNG", transparency=0),
        "PNG",
        "palette with alpha",
    ),
    "PNG 16 bits": (deep(), "PNG", "grey, 16 bits"),
    "PNG with a tail": (encoded(COLOUR, "PNG") + b"more", "PNG", "colour"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_picture(kind: str) -> None:
    content, format, mode = KINDS[kind]
    assert look(content) == Header(format, *SIZE, mode)
    assert decoding_fault(content) == ""


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "tail" not in kind])
def test_a_file_that_is_cut_off_anywhere(kind: str) -> None:
    content = KINDS[kind][0]
    for length in range(len(content)):
        found = look(content[:length])
        assert isinstance(found, Unusable), length
        assert found.rule in ("truncated", "empty" if not length else "picture"), length


def test_a_preview_in_the_header_is_not_the_end() -> None:
    preview = b"\xff\xe1" + (2 + len(KINDS["JPEG grey"][0])).to_bytes(2) + KINDS["JPEG grey"][0]
    whole = KINDS["JPEG colour"][0]
    content = whole[:2] + preview + whole[2:]
    assert isinstance(look(content), Header)
    assert look(content[:-20]).rule == "truncated"


def test_a_picture_that_is_to_be_turned() -> None:
    assert look(encoded(COLOUR, exif=TURNED)).is_turned
    assert look(encoded(COLOUR, "PNG", exif=TURNED)).is_turned
    TURNED[0x0112] = 1
    assert not look(encoded(COLOUR, exif=TURNED)).is_turned


@pytest.mark.parametrize(
    ("content", "rule", "words"),
    [
        (b"", "empty", "0 bytes"),
        (encoded(COLOUR.convert("P"), "GIF"), "picture", "GIF"),
        (encoded(COLOUR, "BMP"), "picture", "BM"),
        (encoded(COLOUR, "TIFF"), "picture", "TIFF"),
        (encoded(COLOUR, "WEBP"), "picture", "WebP"),
        (b"\0\0\0\x18ftypheic\0\0\0\0", "picture", "HEIC"),
        (b"<!DOCTYPE html>", "picture", "HTML"),
        (b"version https://git-lfs.github.com/spec/v1\n", "picture", "Git LFS"),
        (b"name,label\n", "picture", "name,label"),
        (encoded(COLOUR)[:2] + b"\xff\xc9" + encoded(COLOUR)[4:], "coding", "arithmetic"),
        (encoded(COLOUR).replace(b"\xff\xc0\0\x11\x08", b"\xff\xc1\0\x11\x0c"), "coding", "12"),
        (png_of_size(0, 5), "broken", "0 x 5"),
        (encoded(COLOUR, "PNG").replace(b"IHDR\0", b"IHDR\1"), "broken", "IHDR"),
    ],
)
def test_files_that_are_no_pictures(content: bytes, rule: str, words: str) -> None:
    found = look(content)
    assert isinstance(found, Unusable) and found.rule == rule and words in found.value


@given(st.sampled_from(list(KINDS)), st.data())
def test_a_damaged_file_is_named_or_taken_but_never_an_error(
    kind: str, data: st.DataObject
) -> None:
    content = bytearray(KINDS[kind][0])
    for _ in range(data.draw(st.integers(1, 5))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    found = look(bytes(content))
    assert isinstance(found, Header | Unusable)
    if isinstance(found, Header):
        assert found.width > 0 < found.height
