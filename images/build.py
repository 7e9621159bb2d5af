"""Builds the images with docker, podman or buildah: `make images REGISTRY=registry.example.com/me`.

    python -m images.build --registry REGISTRY [--push] [--gpu] [--serving] [--builder BUILDER] ...

The context of the Containerfiles is made first, in images/context/: the wheel of this checkout,
and the requirements of each image from uv.lock with their hashes. Nothing in it depends on the
time, and the builder gets a fixed time for every file: where it can set that (buildah and podman
can), the same lock, code and base give the same digest.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kfp_tfjob.common.errors import ConfigurationError, Problem, StepError
from kfp_tfjob.options.container_images import (
    PLACEHOLDER,
    Reference,
    registry_problems,
    serving_in,
    tools_in,
    trainer_in,
)
from kfp_tfjob.pipelines.compilation import DIGESTS

ROOT = Path(__file__).parents[1]
FILES = Path(__file__).parent  # of the Containerfiles
CONTEXT = FILES / "context"
BASE = "docker.io/library/python:3.11-slim-bookworm"
EPOCH = 1580601600  # seconds; the time of the files in a wheel of hatchling, 2020-02-02
_BUILDERS = ("docker", "podman", "buildah")
_CERTIFICATES = "/run/secrets/pip-cert"  # in a build: where the secret pip-cert is mounted


@dataclass(frozen=True)
class Image:
    """One of the images.

    Attributes:
        extra: The extra of pyproject.toml that it installs.
        containerfile: The name of its Containerfile in images/.
        requirements: The name of its requirements in the context, without `.txt`.
        accelerator: The build argument ACCELERATOR; empty where there is none.
    """

    extra: str
    containerfile: str
    requirements: str
    accelerator: str = ""

    def reference(self, registry: str) -> str:
        """Return the image's name in a registry."""
        if self.extra == "tools":
            return tools_in(registry)
        if self.extra == "serve":
            return serving_in(registry)
        return trainer_in(registry, gpu=self.accelerator == "gpu")


IMAGES = {
    "tools": Image("tools", "tools.Containerfile", "tools"),
    "trainer": Image("trainer", "trainer.Containerfile", "trainer-cpu", "cpu"),
    "trainer-gpu": Image("gpu", "trainer.Containerfile", "trainer-gpu", "gpu"),
    "serving": Image("serve", "serving.Containerfile", "serving"),
}


def chosen(gpu: bool = False, serving: bool = False) -> list[str]:
    """Return the names of the images to build: the images that runs need, and optional ones."""
    left_out = {"trainer-gpu": not gpu, "serving": not serving}
    return [name for name in IMAGES if not left_out.get(name)]


def make_context(names: Sequence[str], folder: Path = CONTEXT) -> Path:
    """Write everything that the Containerfiles copy; the same checkout gives the same bytes.

    Args:
        names: Of IMAGES.
        folder: Emptied first.

    Returns:
        The folder.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    shutil.copy(FILES / "install.sh", folder)
    uv("build", "--quiet", "--wheel", "--out-dir", folder)
    (folder / ".gitignore").unlink(missing_ok=True)  # uv's, which some builders obey
    (folder / "backend.txt").write_text(_requirements("--only-group", "images"))
    for name in names:
        image = IMAGES[name]
        wheels, sdists = requirements(image.extra)
        (folder / f"{image.requirements}.txt").write_text(wheels)
        (folder / f"{image.requirements}-sdists.txt").write_text(sdists)
    return folder


def requirements(extra: str) -> tuple[str, str]:
    """Return the locked requirements of an extra with their hashes, in the format of pip.

    Returns:
        The packages with wheels, and the packages that exist as source only.
    """
    text = _requirements("--extra", extra)
    blocks = re.findall(r"^\S.*(?:\n +.*)*\n", text, re.MULTILINE)
    packages = tomllib.loads((ROOT / "uv.lock").read_text())["package"]
    without = {package["name"] for package in packages if not package.get("wheels")}
    sdists = [block for block in blocks if block.partition("==")[0] in without]
    return "".join(block for block in blocks if block not in sdists), "".join(sdists)


def _requirements(*selection: str) -> str:
    """Return the locked requirements of `--extra NAME` or `--only-group NAME`."""
    options = ["--quiet", "--locked", "--no-emit-project", "--no-header", "--no-annotate"]
    if "--extra" in selection:
        options.append("--no-default-groups")
    return uv("export", *options, "--format", "requirements.txt", *selection)


def uv(*arguments: str | Path) -> str:
    """Run uv in this checkout; return its standard output."""
    uv = shutil.which("uv") or ROOT / ".tools/bin/uv"
    return _run([uv, *arguments], capture_output=True).stdout


@dataclass
class Builder:
    """docker, podman or buildah, with its global options.

    Attributes:
        command: For example, ["buildah", "--root", "/var/cache/images"].
        arguments: More options of every build.
        base: The image that all stages begin with.
    """

    command: list[str]
    arguments: list[str] = field(default_factory=list)
    base: str = BASE

    @property
    def kind(self) -> str:
        """One of docker, podman and buildah."""
        return next(name for name in _BUILDERS if Path(self.command[0]).name == name)

    @classmethod
    def find(cls, requested: str = "", arguments: str = "", base: str = BASE) -> Builder:
        """Return the builder that is named, or the first one on this machine.

        Args:
            requested: A command with its global options; empty for any builder.
            arguments: More options of every build, as in a shell.
            base: The image that all stages begin with.

        Raises:
            ConfigurationError: There is no builder here, or the requested one is not supported.
        """
        command = shlex.split(requested) or [name for name in _BUILDERS if _is_usable(name)][:1]
        if not command or Path(command[0]).name not in _BUILDERS or not shutil.which(command[0]):
            raise ConfigurationError(
                Problem(
                    "there is no image builder",
                    received=requested or "none of them on this machine",
                    expected="docker with the buildx plugin, podman or buildah",
                    fix="install one, or name it: make images BUILDER=buildah",
                )
            )
        return cls(command, shlex.split(arguments), base)

    def build(self, name: str, reference: str, context: Path = CONTEXT) -> None:
        """Build one of IMAGES under the name `reference`.

        Raises:
            ConfigurationError: The build failed, or PIP_CERT is not a file.
        """
        image = IMAGES[name]
        build_arguments = {"BASE": self.base, "SOURCE_DATE_EPOCH": str(EPOCH)}
        if image.accelerator:
            build_arguments["ACCELERATOR"] = image.accelerator
        options = [f"--build-arg={key}={value}" for key, value in build_arguments.items()]
        if self.kind == "docker":
            command = ["buildx", "build", "--load", "--provenance=false"]
        else:
            command = ["bud" if self.kind == "buildah" else "build", "--layers", "--format=oci"]
            command += [f"--timestamp={EPOCH}"]
        options += ["-t", reference, "-f", str(FILES / image.containerfile)]
        certificates = _certificates()
        if certificates:
            command.append(f"--secret=id=pip-cert,src={certificates}")
        with tempfile.NamedTemporaryFile("w") as file:
            file.write(_pip_conf(certificates))
            file.flush()
            # The address may contain a password, and an image's history shows build arguments.
            command.append(f"--secret=id=pip,src={file.name}")
            _run([*self.command, *command, *self.arguments, *options, context])

    def push(self, reference: str) -> str:
        """Push an image to its registry; return its digest."""
        if self.kind == "docker":
            _run([*self.command, "push", reference])
            form = "{{range .RepoDigests}}{{println .}}{{end}}"
            inspect = [*self.command, "inspect", "--format", form, reference]
            printed = _run(inspect, capture_output=True).stdout.split()
            repositories = [Reference.parse(repository) for repository in printed]
            # docker prints Docker Hub's repositories without a domain.
            digests = {(image.domain, image.path): image.digest for image in repositories}
            pushed = Reference.parse(reference)
            return digests[pushed.domain, pushed.path]
        file = CONTEXT / "digest"
        tls = [argument for argument in self.arguments if argument.startswith("--tls-verify")]
        _run([*self.command, "push", f"--digestfile={file}", *tls, reference])
        return file.read_text().strip()


def _is_usable(name: str) -> bool:
    if name == "docker" and shutil.which(name):  # some distributions package buildx apart
        return not subprocess.run([name, "buildx", "version"], capture_output=True).returncode
    return bool(shutil.which(name))


def _certificates() -> Path | None:
    """Return the file in PIP_CERT, the certificates of a package index; None if it is not set."""
    name = os.environ.get("PIP_CERT")
    if not name:
        return None
    path = Path(name)
    if not path.is_file():
        raise ConfigurationError(
            Problem(
                "PIP_CERT is not a file",
                received=repr(name),
                expected="a file on this machine with certificates in PEM format",
                fix="correct the path, or unset PIP_CERT if the index has a public certificate",
            )
        )
    return path.resolve()


def _pip_conf(certificates: Path | None) -> str:
    """Return pip's configuration in a build: a mirror of PyPI and its certificates, if any."""
    lines = ["[global]"]
    if index := os.environ.get("PIP_INDEX_URL"):
        lines.append(f"index-url = {index}")
    if certificates:
        lines.append(f"cert = {_CERTIFICATES}")
    return "\n".join(lines) + "\n"


def _run(
    command: Sequence[str | Path], capture_output: bool = False
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command, cwd=ROOT, text=True, capture_output=capture_output)
    if done.returncode:
        raise ConfigurationError(
            Problem(
                f"`{shlex.join(map(str, command[:3]))} ...` failed",
                received=(done.stderr or "").strip()[-2000:] or f"exit code {done.returncode}",
                fix="see its output above",
            )
        )
    return done


def main(arguments: Sequence[str] | None = None) -> int:
    """Build, and with --push push and write the file of digests."""
    parser = argparse.ArgumentParser(
        prog="make images", description=str(__doc__).partition("\n")[0]
    )
    add = parser.add_argument
    add("--registry", default="", help="registry and path, for example ghcr.io/me")
    add("--push", action="store_true", help="push, and write images/digests.json")
    add("--gpu", action="store_true", help="build the trainer image for GPUs too")
    add("--serving", action="store_true", help="build the image of `kfp-tfjob serve` too")
    add("--builder", default="", help="docker, podman or buildah, with global options")
    add(
        "--build-arguments",
        default="",
        help="more options of each build, as in =--tls-verify=false",
    )
    add("--base", default=BASE, help=f"base image [default: {BASE}]")
    parsed = parser.parse_args(arguments)
    try:
        _build(parsed)
    except StepError as error:
        print(f"make images: {error}", file=sys.stderr)
        return error.code
    return 0


def _build(arguments: argparse.Namespace) -> None:
    registry = arguments.registry.rstrip("/")
    if arguments.push and not registry:
        raise ConfigurationError(
            Problem(
                "PUSH needs a registry", fix="make images PUSH=1 REGISTRY=registry.example.com/me"
            )
        )
    if registry:
        ConfigurationError.raise_if(registry_problems(registry, "--registry"))
    builder = Builder.find(arguments.builder, arguments.build_arguments, arguments.base)
    names = chosen(arguments.gpu, arguments.serving)
    make_context(names)
    images = {name: IMAGES[name].reference(registry or PLACEHOLDER) for name in names}
    for name, image in images.items():
        builder.build(name, image)
    if arguments.push:
        digests = {image: builder.push(image) for image in images.values()}
        DIGESTS.write_text(json.dumps(digests, indent=1) + "\n")
    print(*images.values(), sep="\n")


if __name__ == "__main__":
    sys.exit(main())
