"""The version, the changelog, the archives of a release, and the workflow that makes it."""

import datetime
import json
import os
import re
import shlex
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from kfp_tfjob.options.container_images import VERSION, trainer_in
from release import assets, changelog, sign
from release.version import SOURCE, places, set_version
from tests.environments import ROOT
from tests.problems import problem_of

WORKFLOW = ROOT / ".github" / "workflows" / "release.yml"
MAKEFILE = (ROOT / "Makefile").read_text()
TODAY = datetime.date(2026, 12, 1)
CHANGELOG = """# Changelog

## [Unreleased]

One change: [docs](docs/a.md#b), [site](https://example.org), [below](#c).

## [0.1.0] - 2026-01-01

Another change.
"""
# Files that a command writes from the version, or that tell of earlier ones.
DERIVED = ("pipelines/compiled/", "docs/parameters.md", "components/", "CHANGELOG.md")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of the files that contain the version, and of the changelog."""
    for path in {place.path for place in places()} | {ROOT / "CHANGELOG.md"}:
        copy = tmp_path / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
    return tmp_path


def test_every_place_has_the_version_of_the_code() -> None:
    versions = {str(place.path.relative_to(ROOT)): place.version for place in places()}
    assert {*versions.values()} == {VERSION}
    assert {SOURCE, "pyproject.toml", "uv.lock", "docs/install.md"} <= {*versions}
    assert sum(path.startswith("deploy/") for path in versions) == 6


def test_no_other_file_names_the_version() -> None:
    command = ["git", "grep", "-lE", rf"kfp[-_]tfjob[a-z-]*[:-]{re.escape(VERSION)}\b"]
    files = subprocess.check_output(command, cwd=ROOT, text=True).splitlines()
    known = {str(place.path.relative_to(ROOT)) for place in places()}
    assert [file for file in files if not file.startswith(DERIVED) and file not in known] == []


def test_the_next_version_is_written_everywhere(checkout: Path) -> None:
    before = {place.path: place.path.read_text() for place in places(checkout)}
    changed = set_version("7.8.9", TODAY, checkout)
    assert {*changed} == {*before} | {checkout / "CHANGELOG.md"}
    assert {place.version for place in places(checkout)} == {"7.8.9"}
    for path, text in before.items():
        assert path.read_text().replace("7.8.9", VERSION) == text
    assert "## [7.8.9] - 2026-12-01\n" in (checkout / "CHANGELOG.md").read_text()


@pytest.mark.parametrize("version", [VERSION, "0.1.9", "1.0", "v1.0.0", ""])
def test_a_version_that_is_not_the_next_one_changes_nothing(checkout: Path, version: str) -> None:
    problem = problem_of(set_version, version, TODAY, checkout)
    assert problem.received == repr(version)
    assert {place.version for place in places(checkout)} == {VERSION}


def test_a_release_leaves_an_empty_section_for_later_changes() -> None:
    released = changelog.release(CHANGELOG, "0.2.0", TODAY)
    before, after = changelog.sections(CHANGELOG), changelog.sections(released)
    assert list(after) == ["Unreleased", "0.2.0", "0.1.0"]
    assert after["Unreleased"] == "" and after["0.2.0"] == before["Unreleased"]
    problem = problem_of(changelog.release, released, "0.3.0", TODAY)
    assert "0.2.0, 0.1.0" in problem.received


def test_links_of_the_notes_lead_to_the_files_of_the_release() -> None:
    notes = changelog.notes(CHANGELOG, "Unreleased", "https://host/o/r/blob/v1/")
    assert "(https://host/o/r/blob/v1/docs/a.md#b)" in notes
    assert "(https://example.org)" in notes and "(#c)" in notes
    assert problem_of(changelog.notes, CHANGELOG, "9.9.9").received == "sections Unreleased, 0.1.0"


def test_a_tag_that_is_not_the_version_has_no_notes(capsys: pytest.CaptureFixture[str]) -> None:
    assert changelog.main(["--tag", "v99.0.0"]) == 2
    assert f"v{VERSION}" in capsys.readouterr().err
    assert changelog.main(["--tag", f"v{VERSION}"]) == 0
    assert capsys.readouterr().out.startswith("### Added")


def test_an_archive_depends_only_on_names_and_contents(tmp_path: Path) -> None:
    archives = []
    for name, time in (("a", 1e9), ("b", 1.5e9)):
        folder = tmp_path / name / "files"
        (folder / "inner").mkdir(parents=True)
        for path in (folder / "x", folder / "inner" / "y"):
            path.write_text(path.name)
            path.chmod(0o600 if name == "a" else 0o640)
            os.utime(path, (time, time))
        archives.append(tmp_path / name / "made.tar.gz")
        assets._archive(folder, archives[-1])
    assert archives[0].read_bytes() == archives[1].read_bytes()
    with tarfile.open(archives[0]) as tar:
        assert tar.getnames() == ["made/inner/y", "made/x"]


def test_a_release_needs_the_digests_of_its_images() -> None:
    problem = problem_of(assets._require_digests, ROOT / "pipelines" / "compiled")
    assert trainer_in("set-your-registry.invalid") in problem.received
    assert "make images PUSH=1" in problem.fix


def test_nothing_to_sign_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    signer = sign.Signer()
    monkeypatch.setattr(sign, "DIGESTS", ROOT / "images" / "missing.json")
    assert "make images PUSH=1" in problem_of(sign.sign_images, signer).fix
    assert "make assets" in problem_of(sign.sign_assets, signer, tmp_path).fix


PACKAGES = [
    "SPDXRef-DocumentRoot-Image-t",
    "SPDXRef-Package-deb-libc6-1",
    "SPDXRef-Package-python-2",
]
FILES = ["SPDXRef-File-usr-lib-a-3", "SPDXRef-File-usr-lib-b-4"]


def relationship(element: str, kind: str, related: str) -> dict[str, str]:
    return {"spdxElementId": element, "relationshipType": kind, "relatedSpdxElement": related}


OF_PACKAGES = [
    relationship("SPDXRef-DOCUMENT", "DESCRIBES", PACKAGES[0]),
    relationship(PACKAGES[0], "CONTAINS", PACKAGES[1]),
    relationship(PACKAGES[2], "DEPENDENCY_OF", PACKAGES[1]),
]
SBOM = {
    "spdxVersion": "SPDX-2.3",
    "documentNamespace": "https://anchore.com/syft/image/t-1",
    "packages": [{"SPDXID": name} for name in PACKAGES],
    "files": [{"SPDXID": name} for name in FILES],
    "relationships": [
        *OF_PACKAGES,
        relationship(PACKAGES[1], "CONTAINS", FILES[0]),
        relationship(FILES[1], "OTHER", PACKAGES[2]),
    ],
}


def test_the_log_of_sigstore_gets_no_files_of_an_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stand-ins for syft and cosign: the one writes an SBOM, the other copies what it attests."""
    (tmp_path / "made.json").write_text(json.dumps(SBOM))
    programs = tmp_path / ".tools" / "bin"
    programs.mkdir(parents=True)
    for name, option, command in (
        ("syft", "--output=spdx-json=", f'cp {tmp_path}/made.json "$file"'),
        ("cosign", "--predicate=", f'cp "$file" {tmp_path}/attested.json'),
    ):
        (programs / name).write_text(
            f"#!/bin/sh\nfor word; do case $word in {option}*)\n"
            f"file=${{word#{option}}}; {command};; esac; done\n"
        )
        (programs / name).chmod(0o755)
    monkeypatch.setattr(sign, "ROOT", tmp_path)
    sign.Signer().image(f"r.io/t@sha256:{64 * 'a'}", tmp_path / "t.spdx.json")
    assert json.loads((tmp_path / "t.spdx.json").read_text()) == SBOM
    attested = json.loads((tmp_path / "attested.json").read_text())
    assert attested.keys() == SBOM.keys() - {"files"}
    assert attested["packages"] == SBOM["packages"]
    assert attested["relationships"] == OF_PACKAGES
    assert attested["documentNamespace"] != SBOM["documentNamespace"]


def test_an_sbom_without_files_keeps_its_relationships() -> None:
    document = {"documentNamespace": "https://example.org/t", "relationships": OF_PACKAGES}
    assert sign.without_files(document)["relationships"] == OF_PACKAGES


def jobs() -> dict[str, Any]:
    return yaml.safe_load(WORKFLOW.read_text())["jobs"]


def steps() -> list[dict[str, Any]]:
    return [step for job in jobs().values() for step in job["steps"]]


def test_the_workflow_runs_targets_and_variables_that_exist() -> None:
    targets = {*re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE)}
    variables = {*re.findall(r"\$\((?:or \$\()?([A-Z_]+)\)", MAKEFILE)}
    variables |= {*re.findall(r"\$\(if \$\(([A-Z_]+)\)", MAKEFILE)}
    commands = [line for step in steps() for line in step.get("run", "").splitlines()]
    made = [shlex.split(line) for line in map(str.strip, commands) if line.startswith("make ")]
    assert {line[1] for line in made} >= {"test", "test-install", "images", "assets", "docs"}
    for _, target, *settings in made:
        assert target in targets
        assert {setting.partition("=")[0] for setting in settings} <= variables, target


def test_actions_and_tools_have_one_version_each() -> None:
    uses = re.findall(r"uses: (\S+)@(\S+)(.*)", WORKFLOW.read_text())
    assert len(uses) == sum("uses" in step for step in steps())
    for _, commit, comment in uses:
        assert re.fullmatch("[0-9a-f]{40}", commit) and re.fullmatch(r" # v\d+\.\d+\.\d+", comment)
    assert len({*uses}) == len({action for action, *_ in uses})
    tools = re.findall(r"^[A-Z]+ = github\.com/\S+/cmd/\S+@(\S+)$", MAKEFILE, re.MULTILINE)
    assert len(tools) == 3
    assert all(re.fullmatch(r"v\d+\.\d+\.\d+", version) for version in tools)


def test_the_workflow_tests_every_system_of_the_lock_and_every_python() -> None:
    matrix = jobs()["test"]["strategy"]["matrix"]
    (line,) = re.findall(r"^PYTHONS = (.+)$", MAKEFILE, re.MULTILINE)
    assert matrix["python"] == line.split()
    lock = (ROOT / "uv.lock").read_text()
    systems = {"ubuntu-24.04": "x86_64", "ubuntu-24.04-arm": "aarch64", "macos-15": "arm64"}
    assert matrix["machine"] == [*systems]
    assert all(f"platform_machine == '{name}'" in lock for name in systems.values())


def test_only_a_tag_publishes_and_after_the_tests() -> None:
    workflow = yaml.safe_load(WORKFLOW.read_text())
    assert workflow["permissions"] == {"contents": "read"}
    needs = {
        name: {*[job.get("needs", [])]}
        if isinstance(job.get("needs"), str)
        else {*job.get("needs", [])}
        for name, job in jobs().items()
    }
    assert needs["images"] == {"test", "wheel"} and needs["assets"] == {"images"}
    for name, job in jobs().items():
        writes = {key for key, value in job.get("permissions", {}).items() if value == "write"}
        if not writes:
            continue
        is_guarded = "tag" in job.get("if", "")
        for step in job["steps"]:
            text = step.get("run", "") + step.get("uses", "")
            if re.search("PUSH=1|make sign-|gh release|docker login|deploy-pages", text):
                assert is_guarded or step["if"] == "env.TAG != ''", (name, step)


def test_environments_that_refuse_tags_are_named() -> None:
    """GitHub's default rule for github-pages admits only the default branch."""
    names = {job["environment"]["name"] for job in jobs().values() if "environment" in job}
    header = WORKFLOW.read_text().partition("\nname:")[0]
    assert names == {"github-pages"}
    for text in (header, (ROOT / "CONTRIBUTING.md").read_text()):
        assert "github-pages" in text and "Environments" in text


def test_no_text_of_an_event_becomes_a_command() -> None:
    """An expression in a script is expanded before the shell reads it."""
    assert not [step for step in steps() if "${{" in step.get("run", "")]
