"""Makes a release in dist/: `make release REGISTRY=registry.example.com/me`.

    python -m images.release --registry REGISTRY [--push] [--gpu] [--no-images] ...

dist/ then holds the wheel and the source, an archive and an SBOM of each image, the YAML compiled
with the references of these images, the changes of this version, and SHA256SUMS over all of it.
With --no-images there are no archives.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from images.build import BASE, CONTEXT, IMAGES, ROOT, Builder, chosen, git, make_context, uv
from kfp_tfjob.options.images import VERSION
from kfp_tfjob.pipelines.compilation import compile_all
from kfp_tfjob.pipelines.references import REFERENCES, References
from kfp_tfjob.storage.errors import ConfigurationError, Problem, StepError

DIST = ROOT / "dist"
CHANGELOG = ROOT / "CHANGELOG.md"
SUMS = "SHA256SUMS"


def changes(version: str, changelog: str) -> str:
    """Return the section of a version in the changelog.

    Raises:
        ConfigurationError: There is none, or there are changes above it that are not released.
    """
    sections = re.split(r"^## \[(.+?)\].*\n", changelog, flags=re.MULTILINE)
    found = dict(zip(sections[1::2], sections[2::2], strict=True))
    if found.get("Unreleased", "").strip():
        raise ConfigurationError(
            Problem(
                "the changelog has changes that belong to no version",
                received="a section [Unreleased] that is not empty",
                expected=f"a section [{version}], the version of pyproject.toml, at its top",
                fix="set the new version in pyproject.toml and options/images.py, run `uv lock` and"
                " `make compile`, and rename [Unreleased] to it in CHANGELOG.md",
            )
        )
    if version not in found:
        raise ConfigurationError(
            Problem(
                "the changelog does not have this version",
                received=", ".join(found) or "no section",
                expected=f"a section [{version}]",
                fix="write it in CHANGELOG.md",
            )
        )
    return f"# {version}\n\n{found[version].strip()}\n"


def _check_tree() -> None:
    """Refuse files that are not in the commit: the release would not be reproducible."""
    if changed := git("status", "--porcelain"):
        raise ConfigurationError(
            Problem(
                "the checkout has changes that are not committed",
                received=", ".join(line[3:] for line in changed.splitlines()[:10]),
                expected="a clean checkout of the commit to release",
                fix="commit them, or add --dirty to try it out",
            )
        )


def release(
    registry: str,
    folder: Path = DIST,
    builder: Builder | None = None,
    push: bool = False,
    gpu: bool = False,
) -> Path:
    """Make the release.

    Args:
        registry: The registry and path that the compiled YAML names.
        folder: For its files; emptied first.
        builder: Builds the images; None for a release without archives.
        push: Whether to push the images and pin their digests.
        gpu: Whether to build the trainer image for GPUs too.

    Returns:
        The folder.

    Raises:
        ConfigurationError: Something cannot be released or built.
    """
    notes = changes(VERSION, CHANGELOG.read_text())
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    uv("build", "--quiet", "--out-dir", folder)
    (folder / ".gitignore").unlink(missing_ok=True)
    (folder / f"CHANGELOG-{VERSION}.md").write_text(notes)

    names = chosen(gpu, serving=True)
    make_context(names)
    found = References.by_tag(registry)
    for name in names:
        reference = found.images[name]
        stem = reference.rpartition("/")[2].replace(":", "-")
        shutil.copy(
            CONTEXT / f"{IMAGES[name].requirements}-sbom.json", folder / f"{stem}-sbom.json"
        )
        if builder:
            builder.build(name, reference)
            builder.save(reference, folder / f"{stem}.tar")
    if builder and push:
        pinned = {name: builder.push(found.images[name]) for name in names}
        found = References(VERSION, registry, pinned)
        found.write(REFERENCES)
        found.write(folder / "references.json")
    train = found.images["trainer-gpu"] if gpu else ""
    compile_all(
        folder / "compiled", found.images["tools"], found.images["trainer"], train_image=train
    )
    sums = [
        f"{_digest(file)}  {file.relative_to(folder)}\n"
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    ]
    (folder / SUMS).write_text("".join(sums))
    return folder


def _digest(file: Path) -> str:
    with open(file, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the release in dist/."""
    parser = argparse.ArgumentParser(
        prog="make release", description=str(__doc__).partition("\n")[0]
    )
    add = parser.add_argument
    add("--registry", default="", help="registry and path of the images, for instance ghcr.io/me")
    add("--push", action="store_true", help="push the images, and compile their digests in")
    add("--gpu", action="store_true", help="build the trainer image for GPUs too")
    add("--no-images", action="store_true", help="make no archives of images")
    add("--dirty", action="store_true", help="allow changes that are not committed")
    add("--builder", default="", help="docker, podman or buildah, with global options")
    add(
        "--build-arguments",
        default="",
        help="more options of each build, as in =--tls-verify=false",
    )
    add("--base", default=BASE, help=f"base image [default: {BASE}]")
    given = parser.parse_args(arguments)
    try:
        registry = given.registry.rstrip("/")
        if not registry:
            raise ConfigurationError(
                Problem(
                    "a release needs the registry of its images",
                    fix="make release REGISTRY=registry.example.com/me",
                )
            )
        if not given.dirty:
            _check_tree()
        builder = None
        if not given.no_images:
            builder = Builder.find(given.builder, given.build_arguments, given.base)
        folder = release(registry, DIST, builder, given.push, given.gpu)
    except StepError as error:
        print(f"make release: {error}", file=sys.stderr)
        return error.code
    print(folder)
    print((folder / SUMS).read_text(), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
