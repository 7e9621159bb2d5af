"""The images of the test cluster: those of images/, built here, and no others.

buildah builds them on a base of Debian packages (base.py), and keeps what it has built in the
cache: the layer of the dependencies is made again only when the lock changes, and a change of the
code adds one layer of a few MB. Nodes begin with the large layers (seed.py) and import the rest.
"""

import fcntl
import hashlib
import io
import json
import logging
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from images.build import Builder, make_context
from kfp_tfjob.options.container_images import TOOLS, TRAINER
from tests.cluster import base
from tests.cluster.binaries import cache

log = logging.getLogger(__name__)

# containerd takes a name without a registry for one of docker.io.
PAUSE = "localhost/kfp-tfjob-test/pause:1"
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_NAMES = {"tools": TOOLS, "trainer": TRAINER}
_SEED = "localhost/kfp-tfjob-test/seed:{}"
_PAUSE = 'FROM {base}\nCMD ["sleep", "infinity"]\n'
_LARGE = 30_000_000  # bytes: a layer above it is of the base or of dependencies
# Without the namespaces of its own that a builder wants, it runs where this cluster runs. pip needs
# the network, and the certificates where a proxy signs with its own.
_BUILD = "--isolation chroot --network host --volume /etc/ssl/certs:/etc/ssl/certs:ro"


@dataclass(frozen=True)
class Images:
    """The images that nodes run.

    Attributes:
        archive: An OCI archive of all of them, without the large layers.
        layers: A name for the set of the large layers.
    """

    archive: Path
    layers: str


def build() -> Images:
    """Build the images where anything in them has changed, and make them those of new nodes."""
    folder = cache() / "images"
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        began = time.monotonic()
        context = make_context(list(_NAMES), folder / "context")
        key = _key(context)
        archive = folder / f"{key}.tar"
        if not archive.exists():
            _build(context)
            for old in folder.glob("*.tar"):
                old.unlink()
            with open(archive.with_suffix(".partial"), "wb") as file:
                write_archive(file, large=False)
            archive.with_suffix(".partial").replace(archive)
            log.info("built the images in %.0f s", time.monotonic() - began)
        digests = sorted(blob.name for blob in _blobs() if _is_large(blob))
        layers = hashlib.sha256(json.dumps(digests).encode()).hexdigest()[:12]
        (folder / "current.json").write_text(
            json.dumps({"archive": str(archive), "layers": layers})
        )
        return current()


def current() -> Images:
    found = json.loads((cache() / "images" / "current.json").read_text())
    return Images(Path(found["archive"]), found["layers"])


def write_archive(file: IO[bytes], large: bool) -> None:
    """Write what was built as one OCI archive, with or without the large layers."""
    index = json.loads((_layout() / "index.json").read_text())
    for number, manifest in enumerate(index["manifests"]):
        # containerd takes the name from its own annotation, and that of OCI as a tag only.
        name = manifest["annotations"]["org.opencontainers.image.ref.name"]
        # Under a name of its own, or the kubelet would not find an image that has changed since.
        manifest["annotations"]["io.containerd.image.name"] = (
            _SEED.format(number) if large else name
        )
    with tarfile.open(fileobj=file, mode="w|") as tar:
        _add(tar, "oci-layout", (_layout() / "oci-layout").read_bytes())
        _add(tar, "index.json", json.dumps(index).encode())
        for blob in sorted(_blobs()):
            if large or not _is_large(blob):
                tar.add(blob, f"blobs/sha256/{blob.name}")


def large_layers() -> list[Path]:
    """Return the files of the large layers; their names are their digests."""
    return [blob for blob in _blobs() if _is_large(blob)]


def _layout() -> Path:
    return cache() / "images" / "layout"


def _blobs() -> Iterator[Path]:
    """Yield the files of the images that the index names: there are some of earlier builds too."""
    folder = _layout() / "blobs" / "sha256"
    named: set[str] = set()
    for entry in json.loads((_layout() / "index.json").read_text())["manifests"]:
        named.add(entry["digest"])
        manifest = json.loads((folder / entry["digest"].removeprefix("sha256:")).read_text())
        named |= {part["digest"] for part in [manifest["config"], *manifest["layers"]]}
    yield from (folder / digest.removeprefix("sha256:") for digest in named)


def _is_large(blob: Path) -> bool:
    return blob.stat().st_size > _LARGE


def _add(tar: tarfile.TarFile, name: str, body: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(body)
    tar.addfile(entry, io.BytesIO(body))


def _key(context: Path) -> str:
    """Name what is built from a context, by everything that goes into it."""
    digest = hashlib.sha256(Path(__file__).read_bytes())
    containerfiles = Path(__file__).parents[2].glob("images/*.Containerfile")
    for file in sorted([*context.iterdir(), *containerfiles]):
        digest.update(file.read_bytes())
    said: list[Any] = [base.name(), _NAMES]
    digest.update(json.dumps(said, sort_keys=True).encode())
    return digest.hexdigest()[:12]


def _build(context: Path) -> None:
    # What is mounted is outside the cache, and is gone when the machine starts again.
    store = ["--root", str(cache() / "containers"), "--runroot", "/run/kfp-tfjob-test-containers"]
    command = ["nice", "-n", "10", "buildah", *store]
    made = base.make(command)
    builder = Builder(["buildah", *store], _BUILD.split(), made)
    for name, reference in _NAMES.items():
        builder.build(name, reference, context)
    pause = context / "pause.Containerfile"
    pause.write_text(_PAUSE.format(base=made))
    subprocess.run(
        [*command, "bud", "--quiet", "--format=oci", "--timestamp=0", "-t", PAUSE, "-f", pause],
        check=True,
        capture_output=True,
    )
    (_layout() / "index.json").unlink(missing_ok=True)  # the blobs in it stay, and are not copied
    for reference in (*_NAMES.values(), PAUSE):
        _export(command, reference)
    _forget_blobs()
    # Of builds that were killed, and of images that have a newer one; both only take space.
    for tidy in (["rm", "--all"], ["rmi", "--prune"]):
        subprocess.run([*command, *tidy], capture_output=True)


def _export(buildah: Sequence[str], reference: str) -> None:
    """Add an image to the layout.

    For a layout buildah compresses every layer that is not there by the digest of its content:
    half a minute for the dependencies of the trainer, after each change of the code. A folder can
    have layers as they are, so the large ones are taken from there, once.
    """
    blobs = _layout() / "blobs" / "sha256"
    blobs.mkdir(parents=True, exist_ok=True)
    inspect = [*buildah, "inspect", "--type", "image", reference]
    said = subprocess.run(inspect, check=True, capture_output=True, text=True).stdout
    layers = json.loads(json.loads(said)["Manifest"])["layers"]
    large = [it["digest"].removeprefix("sha256:") for it in layers if it["size"] > _LARGE]
    if not all((blobs / digest).exists() for digest in large):
        with tempfile.TemporaryDirectory(dir=_layout().parent) as folder:
            push = [*buildah, "push", "--quiet", "--disable-compression", reference]
            subprocess.run([*push, f"dir:{folder}"], check=True)
            for digest in large:
                (Path(folder) / digest).replace(blobs / digest)
    target = f"oci:{_layout()}:{reference}"
    subprocess.run([*buildah, "push", "--quiet", reference, target], check=True)


def _forget_blobs() -> None:
    """Remove the files of earlier builds from the layout."""
    named = set(_blobs())
    for blob in (_layout() / "blobs" / "sha256").iterdir():
        if blob not in named:
            blob.unlink()
