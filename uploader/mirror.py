"""Mirrors a folder to the store, in an order that stays correct if the mirror or the trainer dies.

A checkpoint is an immutable directory. The mirror sends its objects first and its manifest last,
and deletes its manifest first. So a reader of manifests finds only complete checkpoints. The
manifest also lists the other files that exist at that time, because the mirror never removes those
from the store; files that are not being written are stored before it. A SavedModel is treated in
the same way, with saved_model.pb as its manifest (`saved_models.py`). The mirror remembers each
stored file's state, so a pass without changes takes one scan and no request. Called by the chief's
sidecar (`watch.py`).
"""

from __future__ import annotations

import logging
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import TypeVar

from kfp_tfjob.common.errors import (
    ConfigurationError,
    DataError,
    ObjectExistsError,
    ObjectNotFoundError,
    StepError,
    StoreUnavailableError,
)
from kfp_tfjob.common.formatting import counted
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.layout import (
    CHECKPOINT_STATE,
    CHECKPOINTS,
    COMPLETION,
    MANIFEST,
    OUTPUT,
    PROGRESS,
    RunLayout,
)
from kfp_tfjob.storage.manifest import Manifest, ManifestObject
from kfp_tfjob.storage.parts import PartsUpload
from kfp_tfjob.storage.store import PART, FileChangedError, Store

from .folder import manifest_at, name_problem, same_content
from .local_files import LocalFile, Scan
from .ownership import FencedError
from .parallel import TransferProgress, each, workers_for
from .saved_models import saved_models

log = logging.getLogger(__name__)
Result = TypeVar("Result")

_STEP = re.compile(rf"{CHECKPOINTS}/(0|[1-9][0-9]*)/")


@dataclass(frozen=True)
class _Stored:
    """A stored file: its local state when it was sent, and its object in the store."""

    file: LocalFile
    object: ManifestObject


class Mirror:
    """Keeps the store up to date with one run's output.

    Args:
        store: The store; with few retries, because every pass tries again.
        folder: The chief's OUTPUT_DIR.
        run: The run's directory in the store.
        run_id: The run.
        attempt: The attempt that writes.
        snapshot_seconds: The shortest time before a growing file is sent again; a file up to 16 MiB
            is also sent before each checkpoint.
        tick: Called about twice a second while files are sent.
        check_owner: Called before every write, also from the threads that send files, with True
            right before a manifest and before a failed request is repeated; it raises FencedError
            if this sidecar no longer owns the run.

    Attributes:
        away: The store did not respond in the last pass.
        refused: The store refused writes in the last pass; the credentials may change.
        trouble: Why files could not be stored in the last pass, by path.
    """

    def __init__(
        self,
        store: Store,
        folder: Path,
        run: RunLayout,
        run_id: str,
        attempt: int,
        snapshot_seconds: float = 30.0,
        tick: Callable[[], None] = lambda: None,
        check_owner: Callable[[bool], None] = lambda now: None,
    ) -> None:
        self.away = self._outage_logged = self.refused = False
        self.trouble: dict[str, str] = {}
        self._store, self._folder, self._run = store, folder, run
        self._run_id, self._attempt = run_id, attempt
        self._tick, self._snapshot_seconds = tick, snapshot_seconds
        self._snapshots: dict[str, float] = {}
        self._stored: dict[str, _Stored] = {}
        self._uploads: dict[str, PartsUpload] = {}  # interrupted by an outage, by key
        self._check_owner = check_owner
        self._published: dict[int, frozenset[LocalFile]] = {}  # steps with a manifest in the store
        self._settled: Scan | None = None  # the last scan that is completely stored
        # Stored files whose bytes were compared after all programs had ended.
        self._compared: set[LocalFile] = set()
        # Steps that have objects in the store, complete or not.
        self._remote: set[int] = set()
        # Steps that earlier pods stored and that were not on this disk at the start.
        self._inherited: set[int] = set()
        self._earlier_output_known = False
        self._graphs: set[str] = set()  # paths of saved_model.pb files with content in the store
        self._logged: defaultdict[str, set[str]] = defaultdict(set)

    def missing(self, scan: Scan) -> list[str]:
        """Return the sorted paths that are not stored in the state of the scan."""
        steps, _ = _by_step(scan)
        manifest = MANIFEST
        return sorted(
            [path for path, file in scan.files.items() if not self._has(file)]
            + [
                f"{CHECKPOINTS}/{step}/{manifest}"
                for step, files in steps.items()
                if not self._is_published(step, files)
            ]
        )

    def store(
        self,
        scan: Scan,
        before: Scan,
        everything: bool = False,
        halted: Callable[[], bool] = lambda: False,
    ) -> None:
        """Make one pass: send new files, the newest checkpoint first.

        An error does not end the mirror: `trouble` and `away` report it, and the next pass tries
        again.

        Args:
            scan: The current contents.
            before: The previous scan; a file that changed since then waits for a later pass.
            everything: All programs have finished writing, so also send files that have just
                changed, and growing files without a wait.
            halted: Called before each file; True ends the pass.

        Raises:
            FencedError: This sidecar no longer owns the run.
        """
        # Reset before the return below, because `prune` may have set them, and must try again.
        self.away, self.refused, self.trouble = False, False, {}
        if not everything and self._settled is not None and scan.files == self._settled.files:
            return
        self._settled = None

        def ended() -> bool:
            return self.away or self.refused or halted()

        try:
            if not self._earlier_output_known:
                self._find_earlier_output(scan)
            for key in self._uploads.keys() - {f"{OUTPUT}/{path}" for path in scan.files}:
                self._uploads.pop(key).abort()
            steps, plain = _by_step(scan)
            steps_before, _ = _by_step(before)
            new = [
                step
                for step, files in sorted(steps.items(), reverse=True)
                if (everything or files == steps_before.get(step))
                and not self._is_published(step, files)
            ]

            def due(with_step: bool = False) -> list[LocalFile]:
                return [
                    file
                    for file in plain
                    if everything
                    or self._is_due(file, file == before.files.get(file.path), with_step)
                ]

            failed = (False, False)
            if new and not everything:
                # A job that resumes from a checkpoint must find the files written before it. The
                # checkpoint comes first only if there may be no time for both.
                self._store_plain([f for f in due(True) if f.path != COMPLETION], plain, ended)
                # A file that cannot be sent must not delay a checkpoint.
                failed, self.away, self.refused = (self.away, self.refused), False, False
            for step in new:
                if not ended():
                    try:
                        self._store_step(step, steps[step], plain, ended)
                    except FencedError:
                        raise
                    except StepError as error:
                        self.note(f"{CHECKPOINTS}/{step}", error)
            self.away, self.refused = self.away or failed[0], self.refused or failed[1]
            final = everything and not ended()
            if final:
                self._forget_changed(plain)
            self._store_plain(due(), plain, ended)
            if final:
                self._compared.update(filter(self._has, plain))
        except FencedError:
            raise
        except StepError as error:
            self.note("the store", error)
        if not self.away:
            self._note_reachable()
        if "the store" not in self.trouble:
            self._logged.pop("the store", None)
        if not self.away and not self.trouble and not self.missing(scan):
            self._settled = scan

    def prune(
        self, scan: Scan, before: Scan, halted: Callable[[], bool] = lambda: False
    ) -> list[int]:
        """Remove the steps that are absent from two scans and older than a stored step.

        If a user's own program trains, a new pod's disk contains only the newest step. The other
        steps stay stored. A step that cannot be removed now is removed by a later call.

        Args:
            scan: The current contents.
            before: The previous scan.
            halted: Called before each request; True ends the call.

        Returns:
            The steps that a later call must remove.

        Raises:
            FencedError: This sidecar no longer owns the run.
        """
        if scan.errors or before.errors or not self._published:
            return []
        local_steps = {_step_of(path) for path in (*scan.files, *before.files)}
        # The project's trainer, which writes CHECKPOINT_STATE, needs only the steps on its disk.
        is_own_trainer = any(path.endswith(f"/{CHECKPOINT_STATE}") for path in scan.files)
        removable = self._remote if is_own_trainer else self._remote - self._inherited
        newest = max(self._published)
        remaining = [step for step in sorted(removable - local_steps) if step < newest]
        while remaining and not (self.away or halted()):
            try:
                self._check_owner(False)
                if not self._remove_step(remaining[0], halted):
                    break
            except FencedError:
                raise
            except StepError as error:
                self.note(f"{CHECKPOINTS}/{remaining[0]}", error)
                break
            self._note_reachable()
            remaining.pop(0)
        return remaining

    def publish(self, scan: Scan) -> Manifest:
        """Write the manifest of the whole output; everything in the scan must be stored.

        Returns:
            The manifest, with keys relative to the run's directory.

        Raises:
            FencedError: This sidecar no longer owns the run.
            ObjectExistsError: The manifest of another run or attempt already exists.
            StepError: The store did not accept it.
        """
        objects = [self._stored[path].object for path in scan.files]
        details = {"files": len(objects)}
        manifest = Manifest.of("output", objects, self._run_id, self._attempt, details)
        data = manifest.to_bytes()
        self._check_owner(True)
        try:
            self._store.create(self._run.manifest, data, "application/json")
        except ObjectExistsError:
            # A pod that was replaced after the manifest was written has trained again, and its
            # output has replaced the objects that the manifest lists.
            if not self._is_manifest_own():
                raise
            self._check_owner(True)
            self._request(lambda store: store.write(self._run.manifest, data, "application/json"))
        return manifest

    def _is_manifest_own(self) -> bool:
        """Return whether an uploader of this attempt wrote the stored manifest of the run."""
        existing = manifest_at(self._store, self._run.base)
        if existing is None:
            return False
        written_by = (existing.kind, existing.run_id, existing.attempt)
        return written_by == ("output", self._run_id, self._attempt)

    def _request(self, call: Callable[[Store], Result]) -> Result:
        """Return the result of a request, which only the run's owner repeats after a failure.

        The request may have failed because this node was frozen. Meanwhile, another attempt may
        have begun, whose objects must not be replaced.
        """
        try:
            return call(self._store.with_patience(0))
        except StoreUnavailableError:
            self._check_owner(True)
            return call(self._store)

    def _delete(self, address: S3Address) -> None:
        self._request(lambda store: store.delete(address))

    def _remove_step(self, step: int, halted: Callable[[], bool]) -> bool:
        """Remove a step from the store; return False if `halted` ended this early."""
        address = self._run.checkpoints / str(step)
        self._published.pop(step, None)
        self._forget([path for path in self._stored if _step_of(path) == step])
        self._delete(address / MANIFEST)
        for file in self._store.list(address):
            if halted():
                return False
            self._check_owner(False)
            self._delete(file.address)
        log.info("removed checkpoint %d, which the trainer has deleted", step)
        self._remote.discard(step)
        return True

    def _is_published(self, step: int, files: frozenset[LocalFile]) -> bool:
        """Return whether the step's manifest in the store lists all of these files.

        The manifest may list further files, because a program deletes a checkpoint file by file. A
        new manifest of the remaining files would make half a checkpoint look complete.
        """
        return files <= self._published.get(step, frozenset())

    def _is_due(self, file: LocalFile, settled: bool, with_step: bool) -> bool:
        """Return whether this pass sends a file outside checkpoints.

        Args:
            file: The file.
            settled: Whether it has not changed since the previous scan.
            with_step: Whether a checkpoint is sent after it, so a small growing file does not wait.
        """
        if not _appending(file.path):
            return settled
        last = self._snapshots.get(file.path)
        is_old = last is None or time.monotonic() - last >= self._snapshot_seconds
        return is_old or (with_step and file.size <= PART)

    def _has(self, file: LocalFile) -> bool:
        """Return whether a file is stored in this state."""
        stored = self._stored.get(file.path)
        return stored is not None and (stored.file, stored.object.size) == (file, file.size)

    def _forget(self, paths: Iterable[str]) -> None:
        for path in paths:
            self._stored.pop(path, None)

    def _find_earlier_output(self, scan: Scan) -> None:
        """Record, once, the checkpoints and SavedModels that earlier processes have stored.

        Names and times may be equal by chance, so the bytes are compared. Other files are sent
        again.
        """
        self._check_owner(False)
        start = len(self._run.output.key) + 1
        # Without this listing, a checkpoint could be replaced while its manifest is still there.
        listing = self._store.list(self._run.output)
        sizes = {file.address.key[start:]: file.size for file in listing}
        try:
            plain = {path for path in sizes if _step_of(path) is None}
            self._remote |= {step for path in sizes if (step := _step_of(path)) is not None}
            self._inherited = self._remote - {_step_of(path) for path in scan.files}
            self._graphs |= {path for path in saved_models(plain) if sizes[path]}
            self._find_earlier_models(scan)
            for step, files in _by_step(scan)[0].items():
                if step not in self._remote:
                    continue
                manifest = manifest_at(self._store, self._run.checkpoints / str(step))
                prefix = f"{CHECKPOINTS}/{step}/"
                objects = {
                    prefix + entry.key: replace(entry, key=f"{OUTPUT}/{prefix}{entry.key}")
                    for entry in (manifest.objects if manifest else ())
                }
                same = same_content(self._folder, {file.path: file for file in files}, objects)
                self._stored |= {file.path: _Stored(file, objects[file.path]) for file in same}
                if len(same) == len(files) == len(objects):
                    self._published[step] = files
                    log.info("checkpoint %d is already stored", step)
        except (ConfigurationError, FencedError, StoreUnavailableError):
            raise
        except StepError as error:
            self.note("the output of earlier attempts", error)
        self._earlier_output_known = True

    def _forget_changed(self, files: Iterable[LocalFile]) -> None:
        """Forget stored files whose bytes have changed since, so that they are sent again.

        A scan does not detect every change. A write through a mapping, such as numpy.memmap's, may
        leave a file's times unchanged, and always does on tmpfs. The comparison reads all files, so
        it runs only after all programs have ended.
        """
        sent = {f.path: f for f in files if self._has(f) and f not in self._compared}
        objects = {path: self._stored[path].object for path in sent}
        same = {file.path for file in same_content(self._folder, sent, objects)}
        self._forget(sent.keys() - same)

    def _store_plain(
        self, due: Sequence[LocalFile], plain: Sequence[LocalFile], ended: Callable[[], bool]
    ) -> None:
        """Store the files outside checkpoints that are due."""
        if all(map(self._has, due)) or ended():
            return
        self._check_owner(False)
        files = {file.path: file for file in plain}
        # Stored graphs count too, because a program may delete a SavedModel and then write another.
        models = saved_models({*files, *self._graphs})
        blocked = self._withdraw_models(models, due)

        def send(matches: Callable[[str], bool]) -> None:
            new = [file for file in due if matches(file.path) and not self._has(file)]
            sent = self._send(sorted(new), ended)
            if sent.files:
                log.info("stored %s, %s", counted(sent.files, "file"), sent)

        send(lambda path: path not in blocked and path not in models and path != COMPLETION)
        # A part that only the store has is a nested SavedModel that the program has deleted.
        send(
            lambda path: (
                path in models
                and all(part not in files or self._has(files[part]) for part in models[path])
            )
        )
        self._graphs |= {path for path in models.keys() & files.keys() if self._has(files[path])}
        # The completion record comes last, because it vouches for all other files.
        send(lambda path: path == COMPLETION)

    def _withdraw_models(
        self,
        models: Mapping[str, Sequence[str]],
        due: Sequence[LocalFile],
    ) -> set[str]:
        """Empty the saved_model.pb of each SavedModel whose other parts are about to be sent.

        The object is not deleted, because the credentials may not allow that.

        Returns:
            The paths of the parts that must not be sent now, because their graph was not emptied.
        """
        blocked: set[str] = set()
        for graph, parts in models.items():
            paths = set(parts)
            new = [file for file in due if file.path in paths]
            try:
                if graph in self._graphs and not all(map(self._has, new)):
                    self._forget([graph])
                    self._empty(graph)
                    self._graphs.discard(graph)
            except FencedError:
                raise
            except StepError as error:
                self.note(graph, error)
                blocked.update(file.path for file in new)
        return blocked

    def _empty(self, path: str) -> None:
        """Replace a file's object by an empty one."""
        self._request(lambda store: store.write(self._run.output / path, b""))

    def _find_earlier_models(self, scan: Scan) -> None:
        """Record the SavedModels whose files are equal on this disk and in the store.

        This is so after a restore. If their parts were sent again, their graph would be emptied
        first, and a pod that died then would leave the store without a usable model.
        """
        for graph, parts in saved_models(scan.files).items():
            if graph in self._graphs:
                files = {path: scan.files[path] for path in (graph, *parts)}
                with suppress(ObjectNotFoundError):
                    objects = {
                        path: self._store.entry(self._run.output / path, f"{OUTPUT}/{path}")
                        for path in files
                    }
                    same = same_content(self._folder, files, objects)
                    if len(same) == len(files):
                        self._stored |= {
                            file.path: _Stored(file, objects[file.path]) for file in same
                        }

    def _store_step(
        self,
        step: int,
        files: frozenset[LocalFile],
        plain: Sequence[LocalFile],
        ended: Callable[[], bool],
    ) -> None:
        """Send a checkpoint's files, and then its manifest if all of them arrived.

        Args:
            step: The training step that names the checkpoint.
            files: The checkpoint's files on this disk.
            plain: The run's files outside checkpoints; the manifest lists them.
            ended: Returns whether the pass must stop, for example during an outage.
        """
        address = self._run.checkpoints / str(step)
        prefix = f"{CHECKPOINTS}/{step}/"
        paths = {file.path: file for file in files}
        self._check_owner(False)
        if step in self._remote:
            # The step was sent only in part, or the trainer wrote it again, so readers must not
            # trust it now. Its objects are not compared, because the trainer also rewrites a step
            # that was damaged in the store.
            self._published.pop(step, None)
            self._delete(address / MANIFEST)
        self._remote.add(step)
        self._inherited.discard(step)
        sent = self._send((file for file in sorted(files) if not self._has(file)), ended)
        if not all(map(self._has, files)):
            return
        objects = [self._stored[path].object for path in paths]
        manifest = Manifest.of(
            "checkpoint",
            [replace(entry, key=entry.key.removeprefix(f"{OUTPUT}/{prefix}")) for entry in objects],
            self._run_id,
            self._attempt,
            {"step": step, "files": sorted(f.path for f in plain if not name_problem(f.path))},
        )
        self._check_owner(True)
        data = manifest.to_bytes()
        self._request(lambda store: store.write(address / MANIFEST, data, "application/json"))
        self._published[step] = files
        log.info("stored checkpoint %d: %s, %s", step, counted(len(files), "file"), sent)

    def _send(self, files: Iterable[LocalFile], ended: Callable[[], bool]) -> TransferProgress:
        """Send files in parallel, and record each file that arrived."""
        files = list(files)
        progress = TransferProgress("storing", len(files), sum(file.size for file in files))

        def tick() -> None:
            progress.tick()
            self._tick()

        if not files:
            return progress

        def may_send(_: LocalFile) -> bool:
            if ended():
                return False
            self._check_owner(False)  # a batch may take hours, or be interrupted for as long
            return True

        queue = takewhile(may_send, files)
        workers = workers_for(self._store.probe(self._run.base).latency)
        for file, sent in each(self._send_file, queue, min(workers, len(files)), tick):
            try:
                self._stored[file.path] = _Stored(file, sent.result())
            except FencedError:
                raise
            except (FileChangedError, FileNotFoundError):
                continue  # the next scan finds the new state
            except Exception as error:  # no error may end the sidecar
                # Rejected credentials fail every file in flight, so only the first one is noted.
                if not (self.refused and isinstance(error, ConfigurationError)):
                    self.note(file.path, error)
            else:
                self._logged.pop(file.path, None)
                self._snapshots[file.path] = time.monotonic()
                progress.add(file.size)
        return progress

    def _send_file(self, file: LocalFile) -> ManifestObject:
        if problem := name_problem(file.path):
            raise DataError(problem)
        key = f"{OUTPUT}/{file.path}"
        source, target = f"{self._folder}/{file.path}", self._run.base / key
        growing = _appending(file.path)
        return self._request(lambda store: store.send(source, target, key, growing, self._uploads))

    def _note_reachable(self) -> None:
        """Log the end of an outage, after a request that the store answered."""
        if self._outage_logged:
            log.info("the store is reachable again")
            self._outage_logged = False

    def note(self, subject: str, error: Exception) -> None:
        """Keep an error for the reply to the trainer, and log it if it is new.

        Args:
            subject: The path, or another name of the thing that could not be stored.
            error: The reason.
        """
        message = str(error) if isinstance(error, StepError) else f"{type(error).__name__}: {error}"
        if isinstance(error, StoreUnavailableError):
            if not self._outage_logged:
                log.warning("the store is unreachable; retrying until it responds: %s", message)
            self.away = self._outage_logged = True
            self.trouble["the store"] = message
            return
        if isinstance(error, ConfigurationError):
            self.refused, subject = True, "the store"
        self.trouble[subject] = message
        if message not in self._logged[subject]:
            self._logged[subject].add(message)
            log.warning("%r failed and will be retried: %s", subject, message)


def _appending(path: str) -> bool:
    """Return whether programs append to a file, so it never settles while the trainer runs."""
    name = path.rpartition("/")[2]
    return name.startswith("events.out.tfevents.") or path == PROGRESS


def _by_step(scan: Scan) -> tuple[dict[int, frozenset[LocalFile]], list[LocalFile]]:
    """Return each checkpoint's files by step, and all other files.

    If a program writes a `manifest.json` into its checkpoint, the mirror cannot write its own. Such
    files are sent like other files, and readers do not treat them as a verifiable checkpoint.
    """
    steps: dict[int, list[LocalFile]] = {}
    plain = []
    for path, file in scan.files.items():
        step = _step_of(path)
        if step is None or f"{CHECKPOINTS}/{step}/{MANIFEST}" in scan.files:
            plain.append(file)
        else:
            steps.setdefault(step, []).append(file)
    return {step: frozenset(files) for step, files in steps.items()}, plain


def _step_of(path: str) -> int | None:
    """Return the step of the checkpoint that contains a path below OUTPUT_DIR; None outside."""
    match = _STEP.match(path)
    return int(match[1]) if match else None


def unnumbered(scan: Scan) -> list[str]:
    """Return the entries of the checkpoints folder without a step's name, which are never restored.

    Temporary names of other libraries are skipped.
    """
    names = {"/".join(path.split("/")[:2]) for path in scan.files if _is_unnumbered(path)}
    return sorted(name for name in names if "tmp" not in name and "temp" not in name)


def _is_unnumbered(path: str) -> bool:
    return path.startswith(f"{CHECKPOINTS}/") and _step_of(path) is None
