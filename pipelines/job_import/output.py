"""Finds a job's output: the path in the pod, and the address in the store to which it is copied.

A job does not declare either. They are inferred from the sidecar that copies the output, from flags
of the program, or from the only empty volume; if that fails, a note asks the user. Called by
`conversion.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from kfp_tfjob.common.errors import StepError
from kfp_tfjob.jobs.user_pod_schema import Container, Mount, is_scratch
from kfp_tfjob.storage.address import S3Address

from .main_container import Mains, is_uploader, upload_text
from .report import Report
from .source_job import SourceJob

CHIEF = ("pod", "chief")
# A flag with an absolute path, and any other absolute path.
_FLAG = re.compile(r"(?<![\w-])--?([A-Za-z][\w.-]*)[=\s]+['\"]?(/[^\s'\";|&)]+)")
# Words of the names of flags and variables, joined by _: of folders that a program writes to, and
# of files that it reads, as in init_checkpoint.
_OF_OUTPUT = re.compile(
    r"(?:^|_)(?:(?:out(?:put)?s?|log(?:s|ging)?|save|export|checkpoints?|ckpts?|results?)"
    r"(?:dir|path|file)?|(?:model|job)_?dir)(?:_|$)"
)
_OF_INPUT = re.compile(
    r"(?:^|_)(?:init(?:ial)?|load|restore|resume|pretrain(?:ed)?|warm|base|from|input)(?:_|$)"
)
_PATH = re.compile(r"(?<![\w:/.$-])/[^\s'\";|&):]+")
_ADDRESS = re.compile(r"s3://(?:\$\([^)]*\)|[^\s'\";|&)])*")
_ENDPOINT = re.compile(r"--endpoint(?:-url)?[=\s]+(\S+)")
_KEY_ID = "AWS_ACCESS_KEY_ID"


@dataclass(frozen=True)
class Output:
    """The chief's output in a job.

    Attributes:
        path: The folder that the program writes to; empty if it is unknown.
        claim: The claim that contains the folder, if only the chief mounts it.
        volume: The volume that the run replaces by its own.
    """

    path: str = ""
    claim: str = ""
    volume: str = ""


@dataclass(frozen=True)
class Destination:
    """The store to which the job's sidecar copies the output; unknown parts are empty."""

    uri: str = ""
    endpoint: str = ""
    region: str = ""
    secret: str = ""


def find_output(job: SourceJob, mains: Mains, command: Sequence[str], report: Report) -> Output:
    """Return the chief's output, inferred from its sidecar or from the program's flags."""
    main = mains[job.chief.role]
    text = " ".join(command)
    sidecar = _uploader(job, main)
    written = [match[2] for match in _FLAG.finditer(text) if _is_of_output(match[1])]
    if sidecar:
        mount = _shared_mount(main, sidecar)
        source = f"the sidecar {sidecar.name}"
    elif written:
        mount = _written_mount(job, main, written, report)
        below = [path for path in written if mount and _is_below(path, mount.mount_path)]
        source = f"the flag with {' and '.join(below)}"
    else:
        mount = _only_scratch_mount(job, main)
        source = "the chief's only emptyDir"
    if mount is None or mount.is_shared_memory:
        _note_unknown_output(written, report)
        return Output()
    path = str(PurePosixPath(mount.mount_path))
    volume = job.chief.template.spec.volume(mount.name)
    # A sidecar copies the whole folder, so all of it is output.
    paths = [] if sidecar else [*_PATH.findall(text), *_paths_in_variables(main)]
    read = [used for used in paths if _is_below(used, path) and used not in written]
    if volume is None or mount.sub_path or (not volume.empty_dir and read):
        reason = f"the program reads {', '.join(read)} there" if read else ""
        _note_not_stored(path, reason, report)
        return Output()
    if volume.empty_dir:
        report.note(f"output: {path}", f"from {source}", "a run stores this folder", CHIEF)
        return Output(path, "", mount.name)
    claim = volume.persistent_volume_claim
    if claim is None or _others_mount(job, mains, claim.claim_name):
        _note_not_stored(path, "", report)
        return Output()
    report.note(
        f"output: {path} on the claim {claim.claim_name}",
        f"from {source}. Each attempt begins with a new, empty folder of the claim, so a file of"
        " an earlier run does not count as output",
        "mount the claim as a volume at another path, if the program reads files from it",
        CHIEF,
    )
    return Output(path, claim.claim_name, mount.name)


def find_destination(job: SourceJob, mains: Mains, report: Report) -> Destination:
    """Return the store to which a sidecar copies the output, and note that a run replaces it."""
    sidecar = _uploader(job, mains[job.chief.role])
    if sidecar is None:
        return Destination()
    is_loop = re.search(r"\bwhile\b", sidecar.text)
    report.note(
        f"{job.chief.name}.containers.{sidecar.name} ({sidecar.image})",
        "it copies the output without a proof that everything arrived"
        + (", and a loop in it keeps a failed replica's pod running" if is_loop else ""),
        "a run's own sidecar copies the output during training, and verifies every byte",
        ("output_uri",),
    )
    return Destination(
        _uri(sidecar, report), _endpoint(sidecar), _region(sidecar), _secret(sidecar, report)
    )


def _uploader(job: SourceJob, main: Container) -> Container | None:
    """Return the chief's sidecar that copies files to a store; None without one."""
    spec = job.chief.template.spec
    native_sidecars = [init for init in spec.init_containers if init.restart_policy]
    containers = [*spec.containers, *native_sidecars]
    return next(
        (container for container in containers if container is not main and is_uploader(container)),
        None,
    )


def _shared_mount(main: Container, sidecar: Container) -> Mount | None:
    """Return the program's mount of a volume that the sidecar copies."""
    sidecar_paths = {mount.name: mount.mount_path for mount in sidecar.volume_mounts}
    shared = [mount for mount in main.volume_mounts if mount.name in sidecar_paths]
    text = upload_text(sidecar)
    # A volume whose path is in the sidecar's command is more likely to be the copied one.
    named = [mount for mount in shared if sidecar_paths[mount.name].rstrip("/") in text]
    return next(iter([*named, *shared]), None)


def _mount_of(main: Container, path: str) -> Mount | None:
    """Return the innermost writable mount that contains a path."""
    mounts = [mount for mount in main.volume_mounts if _is_below(path, mount.mount_path)]
    innermost = max(mounts, key=lambda mount: len(mount.mount_path), default=None)
    return None if innermost and innermost.read_only else innermost


def _is_of_output(name: str) -> bool:
    """Return whether a flag or variable, by its name, names a folder that a program writes to."""
    words = "_".join(re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+", name)).lower()
    return bool(_OF_OUTPUT.search(words)) and not _OF_INPUT.search(words)


def _paths_in_variables(main: Container) -> Iterator[str]:
    """Yield the absolute paths in a program's plain variables, except folders of its output."""
    for variable in main.env:
        if not _is_of_output(variable.name):
            yield from _PATH.findall(variable.value)


def _written_mount(
    job: SourceJob, main: Container, written: Sequence[str], report: Report
) -> Mount | None:
    """Return the mount that contains the folders in flags; None if there are none or several.

    Among several, an emptyDir is the output, because a run mounts the claims in any case, and it
    can mount only the output in the place of an emptyDir.
    """
    mounts: list[Mount] = []
    for path in written:
        mount = _mount_of(main, path)
        if mount and mount not in mounts:
            mounts.append(mount)
    if len(mounts) < 2:
        return next(iter(mounts), None)
    spec = job.chief.template.spec
    scratch = [mount for mount in mounts if is_scratch(mount, spec.volume(mount.name))]
    if len(scratch) != 1:
        return None
    for mount in mounts:
        if mount is not scratch[0]:
            reason = "a run stores one folder, and the flags name several"
            _note_not_stored(mount.mount_path, reason, report)
    return scratch[0]


def _only_scratch_mount(job: SourceJob, main: Container) -> Mount | None:
    """Return the mount of the chief's only emptyDir, in which a program can leave its output."""
    spec = job.chief.template.spec
    mounts = [mount for mount in main.volume_mounts if is_scratch(mount, spec.volume(mount.name))]
    return mounts[0] if len(mounts) == 1 else None


def _is_below(path: str, folder: str) -> bool:
    return PurePosixPath(path).is_relative_to(PurePosixPath(folder))


def _others_mount(job: SourceJob, mains: Mains, claim: str) -> bool:
    """Return whether a replica other than the chief mounts a claim."""
    for role in job.roles[1:]:
        spec = role.template.spec
        for mount in mains[role.role].volume_mounts:
            volume = spec.volume(mount.name)
            volume_claim = volume.persistent_volume_claim if volume else None
            if volume_claim and volume_claim.claim_name == claim:
                return True
    return False


def _note_not_stored(path: str, reason: str, report: Report) -> None:
    """Note that a run cannot store an output folder, by default because all roles share it."""
    report.note(
        f"output: {path}",
        reason or "all roles mount this volume, so it stays theirs, and it is not stored",
        "let the chief write to $OUTPUT_DIR, or to a path that you name in pod.chief.output_path",
        CHIEF,
    )


def _note_unknown_output(written: Sequence[str], report: Report) -> None:
    """Ask the user for the output folder, with the paths after flags as guesses."""
    guess = f", perhaps {' or '.join(dict.fromkeys(written))}" if written else ""
    report.note(
        f"output{guess}",
        "a run stores only what the chief writes to $OUTPUT_DIR or to pod.chief.output_path, and"
        " the job does not say where it writes",
        f"set pod.chief.output_path to that folder{guess}",
        CHIEF,
    )


def _uri(sidecar: Container, report: Report) -> str:
    """Return the address to which a sidecar copies, up to its first variable part."""
    match = _ADDRESS.search(upload_text(sidecar))
    if not match:
        return ""
    address = match[0].rstrip("/")
    fixed, variable = re.match(r"([^$`{%]*)(.*)", address, re.DOTALL).groups()  # type: ignore[union-attr]
    if variable:
        fixed, _, part = fixed.rpartition("/")
        report.note(
            f"{part}{variable}",
            "a shell runs $(...) as a command, and a pod's name differs in each attempt"
            if "$(" in variable
            else "a run's folder does not depend on a variable",
            "the run id: a run writes to runs/<run_id> below output_uri",
            ("output_uri",),
        )
    try:
        return str(S3Address.parse(fixed, "output_uri"))
    except StepError:
        return ""  # as without an address: a note asks the user for it


def _endpoint(sidecar: Container) -> str:
    """Return the store's URL, from the sidecar's command or its variables; empty if unknown."""
    match = _ENDPOINT.search(sidecar.text)
    argument = match[1].strip("'\"") if match else ""
    if argument.startswith("http"):
        return argument
    urls = [sidecar.value(name) for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")]
    urls.append(sidecar.value(argument.strip("${()}")))  # the argument may be a variable
    return next((url for url in urls if url.startswith("http")), "")


def _region(sidecar: Container) -> str:
    return sidecar.value("AWS_REGION") or sidecar.value("AWS_DEFAULT_REGION")


def _secret(sidecar: Container, report: Report) -> str:
    """Return the name of the Secret with the store's keys; empty if unknown."""
    for source in sidecar.env_from:
        if source.secret_ref and not source.prefix:
            return source.secret_ref.name
    for name, reference in _references(sidecar):
        if name == _KEY_ID:
            if reference[1] not in (_KEY_ID, "accesskey"):
                report.note(
                    f"{name} from the key {reference[1]} of Secret {reference[0]}",
                    "storage_secret names a Secret whose keys are called like the variables",
                    f"add the keys {_KEY_ID} and AWS_SECRET_ACCESS_KEY to it",
                    ("storage_secret",),
                )
            return reference[0]
    return ""


def _references(container: Container) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield each variable from a Secret, with the Secret's name and the key."""
    for variable in container.env:
        secret = variable.value_from.secret_key_ref if variable.value_from else None
        if secret:
            yield variable.name, (secret.name, secret.key)
