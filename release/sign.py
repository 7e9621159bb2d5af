"""Signs a release: its images after `make images PUSH=1`, its files after `make assets`.

    python -m release.sign images|assets [--key cosign.key] [--insecure]

Each pushed image gets an SBOM in SPDX, which syft reads from its layers, and a signature. The SBOM
is a file of the release. Its packages, without the tens of thousands of files in them, become a
signed attestation of the image in the registry: Sigstore's log stores the whole attestation, and
refuses one of a few MB (sigstore/cosign#3599). Of the files in dist/, the one with the digests of
all others is signed.

Without a key, Sigstore signs with the identity of the workflow that runs this, so there is no key
to keep. With a key, which `cosign generate-key-pair` makes and COSIGN_PASSWORD opens, nothing is
written to Sigstore's public log. This is for a rehearsal, and for networks without internet.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from images.build import ROOT
from kfp_tfjob.common.errors import ConfigurationError, Problem
from kfp_tfjob.options.container_images import Reference
from kfp_tfjob.pipelines.compilation import DIGESTS

from .assets import DIST, SBOMS, SUMS
from .command import run

BUNDLE = f"{SUMS}.sigstore.json"


@dataclass(frozen=True)
class Signer:
    """cosign and syft, with the options of one signature.

    Attributes:
        key: The file of a private key; empty for the identity of the workflow that runs this.
        insecure: Whether the registry is a rehearsal's, without TLS.
    """

    key: str = ""
    insecure: bool = False

    def image(self, reference: str, sbom: Path) -> None:
        """Write a pushed image's SBOM, sign the image, and attach the SBOM's packages, signed.

        Args:
            reference: The image by its digest.
            sbom: The file to write, in SPDX.

        Raises:
            ConfigurationError: A program is missing or failed.
        """
        _run("syft", "scan", f"registry:{reference}", f"--output=spdx-json={sbom}", "--quiet")
        registry = ["--allow-http-registry"] * self.insecure
        _run("cosign", "sign", "--yes", *registry, *self._options(), reference)
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump(without_files(json.loads(sbom.read_text())), file)
            file.flush()
            predicate = ["--type=spdxjson", f"--predicate={file.name}"]
            _run("cosign", "attest", "--yes", *registry, *self._options(), *predicate, reference)

    def file(self, path: Path, bundle: Path) -> None:
        """Sign a file.

        Args:
            path: The file.
            bundle: The signature to write, with all that its verification needs.
        """
        _run("cosign", "sign-blob", "--yes", *self._options(), f"--bundle={bundle}", path)

    def _options(self) -> list[str]:
        if not self.key:
            return []
        return [f"--key={self.key}", "--tlog-upload=false", "--use-signing-config=false"]


def without_files(document: dict[str, Any]) -> dict[str, Any]:
    """Return an SPDX document without its files and the relationships to them.

    Its namespace is another one, because a namespace names one document.
    """
    files = {file["SPDXID"] for file in document.get("files", ())}
    relationships = [
        relationship
        for relationship in document["relationships"]
        if files.isdisjoint((relationship["spdxElementId"], relationship["relatedSpdxElement"]))
    ]
    packages = {key: value for key, value in document.items() if key != "files"}
    return packages | {
        "documentNamespace": f"{document['documentNamespace']}-packages",
        "relationships": relationships,
    }


def sign_images(signer: Signer) -> list[Path]:
    """Sign every image that was pushed from this checkout; return its SBOMs.

    Raises:
        ConfigurationError: Nothing was pushed, or a program failed.
    """
    if not DIGESTS.is_file():
        raise ConfigurationError(
            Problem(
                "there are no images to sign",
                received=f"no {DIGESTS.relative_to(ROOT)}",
                expected="images with digests",
                fix="run make images PUSH=1 REGISTRY=... first",
            )
        )
    shutil.rmtree(SBOMS, ignore_errors=True)
    SBOMS.mkdir()
    sboms = []
    for image, digest in json.loads(DIGESTS.read_text()).items():
        parts = Reference.parse(image)
        name = f"{Path(parts.path).name}-{parts.tag}.spdx.json"
        signer.image(f"{parts.domain}/{parts.path}@{digest}", SBOMS / name)
        sboms.append(SBOMS / name)
    return sboms


def sign_assets(signer: Signer, folder: Path = DIST) -> list[Path]:
    """Sign the digests of a release's files; return the signature's file.

    Raises:
        ConfigurationError: There are no such digests, or cosign failed.
    """
    if not (folder / SUMS).is_file():
        raise ConfigurationError(
            Problem(
                "there are no files to sign",
                received=f"no {SUMS} in {folder}",
                expected="the files of a release",
                fix="run make assets first",
            )
        )
    signer.file(folder / SUMS, folder / BUNDLE)
    return [folder / BUNDLE]


def _run(program: str, *arguments: str | Path) -> None:
    own = ROOT / ".tools" / "bin" / program
    path = own if own.exists() else shutil.which(program)
    if not path:
        raise ConfigurationError(
            Problem(
                f"there is no program {program}",
                expected="cosign and syft, in .tools/bin or on the PATH",
                fix="run make release-tools, which needs Go",
            )
        )
    done = subprocess.run([path, *arguments], capture_output=True, text=True)
    if done.returncode:
        command = shlex.join([program, *map(str, arguments[:2])])
        raise ConfigurationError(
            Problem(
                f"`{command} ...` failed",
                received=done.stderr.strip()[-2000:] or f"exit code {done.returncode}",
                fix="correct what it names, then run it again: a second signature does no harm",
            )
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Sign; return an exit code."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("what", choices=("images", "assets"))
    parser.add_argument("--key", default="", help="a private key of cosign")
    parser.add_argument("--insecure", action="store_true", help="a registry without TLS")
    parsed = parser.parse_args(arguments)
    signer = Signer(parsed.key, parsed.insecure)
    sign = sign_images if parsed.what == "images" else sign_assets
    return run(f"make sign-{parsed.what}", lambda: sign(signer))


if __name__ == "__main__":
    sys.exit(main())
