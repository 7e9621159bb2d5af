"""Which names may become paths, and that there is one place where this is decided."""

from pathlib import Path

import pytest

from kfp_tfjob.common import names
from kfp_tfjob.common.errors import ConfigurationError, DataError
from kfp_tfjob.components.code_copy import save_code
from kfp_tfjob.components.step import Step
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.layout import Layout
from kfp_tfjob.storage.manifest import Manifest, ManifestObject
from kfp_tfjob.storage.store import Store
from kfp_tfjob.uploader import pull
from kfp_tfjob.user_code import code_files
from kfp_tfjob.user_code.model_code import Code, ModelCode


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (["/etc/x"], "outside"),
        (["a/../b"], "outside"),
        ([".."], "outside"),
        (["a//etc/x"], "empty"),
        (["a/./b"], "a dot"),
        (["a/"], "empty"),
        ([""], "empty"),
        (["a\0b"], "zero byte"),
        (["\ud800"], "not UTF-8"),
        (["a/" + "x" * 256], "255"),
        (["x/" * 600 + "x"], "1024"),
        (["a", "a/b"], "'a' is a file"),
        (["a/b/c", "a"], "'a' is a file"),
        (["a", "a"], "the same file"),
    ],
)
def test_names_that_are_refused(found: list[str], why: str) -> None:
    (problem,) = names.problems(found, "the zip")
    assert why in str(problem)
    str(problem).encode()


def test_names_that_are_right() -> None:
    assert not names.problems(["a", "b/a", "b/c/..d", "A", "line\nbreak", "ü", "a b"], "it")


def test_where_case_is_folded_two_names_are_one_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "FOLDS_CASE", True)
    for pair in (["a", "A"], ["é", "e\u0301"], ["a", "A/b"]):
        assert len(names.problems(pair, "the zip")) == 1


def test_an_s3_key_cannot_lead_preflight_out_of_its_folder(store, base, tmp_path) -> None:
    target = tmp_path / "evil.py"
    store.write(base / "code/model.py", b"def build_model(dataset):\n    return dataset\n")
    store.write(base / f"code/{target}", b"evil")  # as in shared/code//etc/x
    with pytest.raises(ConfigurationError, match="folder"):
        ModelCode(str(base / "code"), "build_model").read(store)
    # Whatever files preflight is given, it writes none elsewhere.
    step = Step("preflight", "r", Layout(base / "out"), store)
    with pytest.raises(DataError, match="folder"):
        save_code(step, Code("model", {str(target): b"evil"}))
    assert not target.exists()


def test_the_mark_of_a_folder_is_no_file_of_it(store: Store, base: S3Address) -> None:
    """What the console of S3 leaves for a folder that was made there."""
    store.write(S3Address(base.bucket, f"{base.key}/own/"), b"")
    store.write(base / "own/model.py", b"x")
    assert code_files.stored(store, base / "own") == {"model.py": b"x"}


TOO_LARGE = ManifestObject("a", 10**400, "")
NO_FILES = [["a", "a/b"], ["a//b"], ["/etc/out"], ["a/../../out"], ["x\0"], ["n" * 256]]


@pytest.mark.parametrize(
    ("objects", "why"),
    [([ManifestObject(key, 1, "") for key in keys], "folder") for keys in NO_FILES]
    + [([TOO_LARGE], "larger than")],
)
def test_a_manifest_with_objects_that_are_no_files_writes_none(
    store: Store, base: S3Address, tmp_path: Path, objects: list[ManifestObject], why: str
) -> None:
    store.write(base / "manifest.json", Manifest.of("code", objects).to_bytes())
    with pytest.raises(DataError, match=why):
        pull(store, base, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
