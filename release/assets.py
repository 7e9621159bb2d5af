"""Makes the files of a release in dist/: `make assets REGISTRY=ghcr.io/me`.

    wheel                       the package
    *-pipeline.tar.gz           the compiled YAML, whose images have the digests of the registry
    *-docs.tar.gz               the site
    *.cdx.json                  SBOM of the package: every locked dependency, in CycloneDX
    *.spdx.json                 SBOMs of the images, if `make sign-images` made them here
    images.json                 the images and their digests
    notes.md                    the changelog's section
    SHA256SUMS                  digests of all of them, which is the file to sign

The same checkout and the same images give the same bytes, except for the SBOM's serial number, so
that anyone can build a release again and compare it.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

from images.build import EPOCH, FILES, ROOT, uv
from kfp_tfjob.common.errors import ConfigurationError, Problem
from kfp_tfjob.options.container_images import VERSION
from kfp_tfjob.pipelines.compilation import DIGESTS, images_of

from .command import run

DIST = ROOT / "dist"
SUMS = "SHA256SUMS"
SBOMS = FILES / "sbom"  # of the images; release/sign.py writes them
_PREFIX = f"kfp-tfjob-{VERSION}"


def make(
    registry: str,
    *,
    gpu: bool = False,
    tag: str = "",
    files: str = "",
    docs_url: str = "",
    folder: Path = DIST,
) -> list[Path]:
    """Make the files of a release.

    Args:
        registry: Registry and path of the images; empty for the placeholders of the committed YAML.
        gpu: Whether the trainer image for GPUs is the default of `train_image`.
        tag: The tag that is released. Empty for a rehearsal, whose images need not be pushed.
        files: The address of the repository's files, for links in the notes.
        docs_url: The address at which the site is published, which failed runs name.
        folder: Emptied first.

    Returns:
        The files, the one with the digests of the others last.

    Raises:
        ConfigurationError: A command failed, the tag names another version, or an image of the
            release has no digest.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    arguments = [*_option("--tag", tag), *_option("--files", files)]
    (folder / "notes.md").write_text(_python("-m", "release.changelog", *arguments))
    uv("build", "--quiet", "--wheel", "--out-dir", folder)
    (folder / ".gitignore").unlink(missing_ok=True)  # uv's
    extras = ("--no-default-groups", "--extra", "local", "--extra", "serve")
    sbom = uv("export", "--quiet", "--locked", "--format", "cyclonedx1.5", *extras)
    (folder / f"{_PREFIX}.cdx.json").write_text(sbom)
    with tempfile.TemporaryDirectory() as temporary:
        compiled, site = Path(temporary, "pipeline"), Path(temporary, "site")
        options = [*_option("--registry", registry), *_option("--docs-url", docs_url)]
        options += ["--gpu"] * gpu
        _python("-m", "kfp_tfjob.pipelines", "compile", "--output", compiled, *options)
        if tag:
            _require_digests(compiled)
        _python("-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", site)
        # mkdocs writes the time of the build into these two, which no page needs.
        for name in ("sitemap.xml", "sitemap.xml.gz"):
            (site / name).unlink(missing_ok=True)
        _archive(compiled, folder / f"{_PREFIX}-pipeline.tar.gz")
        _archive(site, folder / f"{_PREFIX}-docs.tar.gz")
    digests = json.loads(DIGESTS.read_text()) if DIGESTS.is_file() else {}
    for sbom in SBOMS.glob("*.json"):
        shutil.copy(sbom, folder)
    (folder / "images.json").write_text(json.dumps(digests, indent=1, sort_keys=True) + "\n")
    made = sorted(folder.iterdir())
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in made]
    (folder / SUMS).write_text("".join(lines))
    return [*made, folder / SUMS]


def _require_digests(compiled: Path) -> None:
    images = images_of((compiled / "tfjob_training.yaml").read_text())
    if tags := [image for image in images if "@" not in image]:
        raise ConfigurationError(
            Problem(
                "the pipeline of a release names images without digests",
                received=", ".join(tags),
                expected=f"images that {DIGESTS.relative_to(ROOT)} lists",
                fix="run make images PUSH=1 with the same REGISTRY first",
            )
        )


def _archive(source: Path, archive: Path) -> None:
    """Write a folder as an archive whose bytes depend only on names and contents."""

    def plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        member.mtime = EPOCH
        member.mode = 0o755 if member.isdir() else 0o644
        return member

    with (
        open(archive, "wb") as file,
        gzip.GzipFile("", "wb", fileobj=file, mtime=EPOCH) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for path in sorted(path for path in source.rglob("*") if path.is_file()):
            name = f"{archive.name.removesuffix('.tar.gz')}/{path.relative_to(source)}"
            tar.add(path, name, filter=plain)


def _option(name: str, value: str) -> list[str]:
    return [name, value] if value else []


def _python(*command: str | Path) -> str:
    """Run a program of this checkout's environment; return its standard output."""
    done = subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1", "SOURCE_DATE_EPOCH": str(EPOCH)},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise ConfigurationError(
            Problem(
                f"`python {shlex.join(map(str, command[:3]))} ...` failed",
                received=done.stderr.strip()[-2000:] or f"exit code {done.returncode}",
                fix="correct what it names",
            )
        )
    return done.stdout


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the files; return an exit code."""
    parser = argparse.ArgumentParser(
        prog="make assets", description=str(__doc__).partition("\n")[0]
    )
    add = parser.add_argument
    add("--registry", default="", help="registry and path of the images, for example ghcr.io/me")
    add("--gpu", action="store_true", help="the default of train_image is the image for GPUs")
    add("--tag", default="", help="the tag that is released, for example v0.3.0")
    add("--files", default="", help="the address of the repository's files at that tag")
    add("--docs-url", default="", help="the address of the published site")
    parsed = parser.parse_args(arguments)
    return run("make assets", lambda: [path.relative_to(ROOT) for path in make(**vars(parsed))])


if __name__ == "__main__":
    sys.exit(main())
