"""A release: what is in dist/, and what is refused before anything is built."""

import hashlib
import zipfile
from pathlib import Path

import pytest

from images import release as module
from images.release import changes, main, release
from kfp_tfjob.options.images import VERSION
from kfp_tfjob.pipelines.compilation import images_of
from kfp_tfjob.storage.errors import ConfigurationError

NOTES = f"# Changelog\n\n## [{VERSION}]\n\n### Added\n- One.\n\n## [0.0.1]\n\n- Zero.\n"


def test_the_changes_of_a_version() -> None:
    assert changes(VERSION, NOTES) == f"# {VERSION}\n\n### Added\n- One.\n"
    assert changes(VERSION, NOTES.replace("## [", "## [Unreleased]\n\n## [", 1))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (NOTES.replace("## [", "## [Unreleased]\n- Two.\n\n## [", 1), "belong to no version"),
        (NOTES.replace(VERSION, "9.9.9"), "does not have this version"),
        ("# Changelog\n", "does not have this version"),
    ],
)
def test_a_changelog_that_does_not_fit(text: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        changes(VERSION, text)


def test_what_is_in_a_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "CHANGELOG.md").write_text(NOTES)
    monkeypatch.setattr(module, "CHANGELOG", tmp_path / "CHANGELOG.md")
    folder = release("r.example.com/me", tmp_path / "dist")
    files = {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}
    wheel = f"kfp_tfjob-{VERSION}-py3-none-any.whl"
    assert files >= {
        wheel,
        f"kfp_tfjob-{VERSION}.tar.gz",
        f"CHANGELOG-{VERSION}.md",
        f"kfp-tfjob-tools-{VERSION}-sbom.json",
        f"kfp-tfjob-trainer-{VERSION}-sbom.json",
        "compiled/tfjob_training.yaml",
        "SHA256SUMS",
    }
    assert images_of((folder / "compiled/tfjob_training.yaml").read_text()) == [
        f"r.example.com/me/kfp-tfjob-tools:{VERSION}",
        f"r.example.com/me/kfp-tfjob-trainer:{VERSION}",
    ]
    sums = dict(
        reversed(line.split("  ")) for line in (folder / "SHA256SUMS").read_text().splitlines()
    )
    assert set(sums) == files - {"SHA256SUMS"}
    assert sums[wheel] == hashlib.sha256((folder / wheel).read_bytes()).hexdigest()
    assert "kfp_tfjob/options/images.py" in zipfile.ZipFile(folder / wheel).namelist()


def test_what_is_refused(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    assert main([]) == 2
    assert "REGISTRY=" in capsys.readouterr().err
    monkeypatch.setattr(module, "git", lambda *_: " M storage/escaping.py")
    assert main(["--registry", "r"]) == 2
    assert "storage/escaping.py" in capsys.readouterr().err
