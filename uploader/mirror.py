"""Mirrors a folder to the store, in an order that stays correct if the mirror or the trainer dies.

A checkpoint is an immutable directory. The mirror sends its objects first and its manifest last,
and deletes its manifest first. So a reader of manifests finds only complete checkpoints. The
manifest also lists the other files of that moment, because the mirror never removes those from the
store; files that are not being written are stored before it. A SavedModel is treated in the same
way, with saved_model.pb for a manifest (`saved_models.py`). The mirror remembers what it has
stored, so a pass without changes takes one scan and no request.
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

from kfp_tfjob.storage.errors import (
    ConfigurationError,
    DataError,
    ObjectNotFoundError,
    StepError,
    StoreUnavailableError,
)
from kfp_tfjob.storage.formatting import counted
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
from kfp_tfjob.uploader.folder import manifest_at, name_problem, same_content
from kfp_tfjob.uploader.local_files import LocalFile, Scan
from kfp_tfjob.uploader.ownership import FencedError
from kfp_tfjob.uploader.parallel import TransferProgress, each, workers_for
from kfp_tfjob.uploader.saved_models import saved_models

log = logging.getLogger(__name__)

_STEP = re.compile(rf"{CHECKPOINTS}/(0|[1-9][0-9]*)/")


@dataclass(frozen=True)
class _Stored:
    """A stored file: its state when it was sent, and its object."""

    file: LocalFile
    object: ManifestObject


class Mirror:
    """Keeps the store up to date with one run's output.

    Args:
        store: The store; with a short patience, because every pass tries again.
        folder: The chief's OUTPUT_DIR.
        run: The run's directory in the store.
        run_id: The run.
        attempt: The attempt that writes.
        snapshot_seconds: The shortest time before a growing file is sent again; a file up to 16 MiB
            is also sent before each checkpoint.
        tick: Called about twice a second while files are sent.
        check_owner: Called before every write, with True right before a manifest; it raises
            FencedError if this sidecar no longer owns the run.

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
        self.away = self._said_away = self.refused = False
        self.trouble: dict[str, str] = {}
        self._store, self._folder, self._run = store, folder, run
        self._run_id, self._attempt = run_id, attempt
        self._tick, self._snapshot_seconds = tick, snapshot_seconds
        self._snapshots: dict[str, float] = {}
        self._stored: dict[str, _Stored] = {}
        self._uploads: dict[str, PartsUpload] = {}  # that an outage ended, by key
        self._check_owner = check_owner
        self._published: dict[int, frozenset[LocalFile]] = {}  # steps with a manifest in the store
        self._settled: Scan | None = None  # the last scan that is completely stored
        self._compared: set[LocalFile] = set()  # stored with the bytes after all programs ended
        # Steps that have objects in the store, complete or not.
        self._remote: set[int] = set()
        # Those of them that earlier pods left there and that were not on this disk at the start.
        self._inherited: set[int] = set()
        self._learned = False
        self._graphs: set[str] = set()  # each saved_model.pb that has content in the store
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
        """Make one pass: send what is new, the newest checkpoint first.

        An error does not end the mirror: `trouble` and `away` show it, and the next pass tries
        again.

        Args:
            scan: The current contents.
            before: The previous scan; a file that changed since then waits for a later pass.
            everything: All programs have finished writing, so also send files that have just
                changed, and growing files without a wait.
            halted: Called before each file; true ends the pass.

        Raises:
            FencedError: This sidecar no longer owns the run.
        """
        # Before the return: `prune` may also have failed, and must try again.
        self.away, self.refused, self.trouble = False, False, {}
        if not everything and self._settled is not None and scan.files == self._settled.files:
            return
        self._settled = None

        def ended() -> bool:
            return self.away or self.refused or halted()

        try:
            if not self._learned:
                self._learn(scan)
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
                # A file that fails does not hold back a checkpoint.
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
        except (ConfigurationError, StoreUnavailableError) as error:
            self.note("the store", error)
        if not self.away:
            self._note_reachable()
        if not self.refused:
            self._logged.pop("the store", None)
        if not self.away and not self.trouble and not self.missing(scan):
            self._settled = scan

    def prune(
        self, scan: Scan, before: Scan, halted: Callable[[], bool] = lambda: False
    ) -> list[int]:
        """Remove the steps that are absent from two scans and older than a stored step.

        A new pod has only the newest step of a program of the user's own; the others stay stored.
        A step that cannot be removed now is removed by a later call.

        Args:
            scan: The current contents.
            before: The previous scan.
            halted: Called before each request; true ends the call.

        Returns:
            The steps that a later call must remove.

        Raises:
            FencedError: This sidecar no longer owns the run.
        """
        if scan.errors or before.errors or not self._published:
            return []
        here = {_step_of(path) for path in (*scan.files, *before.files)}
        is_ours = any(path.endswith(f"/{CHECKPOINT_STATE}") for path in scan.files)
        known = self._remote if is_ours else self._remote - self._inherited
        newest = max(self._published)
        left = [step for step in sorted(known - here) if step < newest]
        while left and not (self.away or halted()):
            try:
                self._check_owner(False)
                if not self._remove_step(left[0], halted):
                    break
            except FencedError:
                raise
            except StepError as error:
                self.note(f"{CHECKPOINTS}/{left[0]}", error)
                break
            self._note_reachable()
            left.pop(0)
        return left

    def publish(self, scan: Scan) -> Manifest:
        """Write the manifest of the whole output; everything in the scan must be stored.

        Returns:
            The manifest, with keys relative to the run's directory.

        Raises:
            FencedError: This sidecar no longer owns the run.
            ObjectExistsError: A different manifest already exists.
            StepError: The store did not accept it.
        """
        objects = [self._stored[path].object for path in scan.files]
        details = {"files": len(objects)}
        manifest = Manifest.of("output", objects, self._run_id, self._attempt, details)
        self._check_owner(True)
        self._store.create(self._run.manifest, manifest.to_bytes(), "application/json")
        return manifest

    def _remove_step(self, step: int, halted: Callable[[], bool]) -> bool:
        """Remove a step from the store; return whether all of it is gone."""
        address = self._run.checkpoints / str(step)
        self._published.pop(step, None)
        self._forget([path for path in self._stored if _step_of(path) == step])
        self._store.delete(address / MANIFEST)
        for item in self._store.list(address):
            if halted():
                return False
            self._store.delete(item.address)
        log.info("removed checkpoint %d, which the trainer has deleted", step)
        self._remote.discard(step)
        return True

    def _is_published(self, step: int, files: frozenset[LocalFile]) -> bool:
        """Return whether a manifest in the store lists all of these files of a step.

        It may list more: a program deletes a checkpoint file by file. A manifest of the files that
        are left would let a reader take half a checkpoint for a complete one.
        """
        return files <= self._published.get(step, frozenset())

    def _is_due(self, file: LocalFile, settled: bool, with_step: bool) -> bool:
        if not _appending(file.path):
            return settled
        last = self._snapshots.get(file.path)
        waited = last is None or time.monotonic() - last >= self._snapshot_seconds
        return waited or (with_step and file.size <= PART)

    def _has(self, file: LocalFile) -> bool:
        """Return whether a file is stored in this state."""
        stored = self._stored.get(file.path)
        return stored is not None and (stored.file, stored.object.size) == (file, file.size)

    def _forget(self, paths: Iterable[str]) -> None:
        for path in paths:
            self._stored.pop(path, None)

    def _learn(self, scan: Scan) -> None:
        """Find out once which checkpoints and SavedModels earlier processes and attempts stored.

        Equal names and times prove nothing: the bytes must be equal. Other files are sent again.
        """
        try:
            self._check_owner(False)
            start = len(self._run.output.key) + 1
            items = self._store.list(self._run.output)
            sizes = {item.address.key[start:]: item.size for item in items}
            plain = {path for path in sizes if _step_of(path) is None}
            self._remote |= {step for path in sizes if (step := _step_of(path)) is not None}
            self._inherited = self._remote - {_step_of(path) for path in scan.files}
            self._graphs |= {path for path in saved_models(plain) if sizes[path]}
            self._learn_models(scan)
            for step, files in _by_step(scan)[0].items():
                if step not in self._remote:
                    continue
                manifest = manifest_at(self._store, self._run.checkpoints / str(step))
                prefix = f"{CHECKPOINTS}/{step}/"
                known = {
                    prefix + item.key: replace(item, key=f"{OUTPUT}/{prefix}{item.key}")
                    for item in (manifest.objects if manifest else ())
                }
                same = same_content(self._folder, {file.path: file for file in files}, known)
                self._stored |= {file.path: _Stored(file, known[file.path]) for file in same}
                if len(same) == len(files) == len(known):
                    self._published[step] = files
                    log.info("checkpoint %d is already stored", step)
        except (ConfigurationError, FencedError, StoreUnavailableError):
            raise
        except StepError as error:
            self.note("the output of earlier attempts", error)
        self._learned = True

    def _forget_changed(self, files: Iterable[LocalFile]) -> None:
        """Find stored files whose bytes have changed since, once all programs have ended.

        A scan does not show every change: a write through a mapping, as by numpy.memmap, may leave
        the times of a file as they are, and on tmpfs always does.
        """
        sent = {f.path: f for f in files if self._has(f) and f not in self._compared}
        known = {path: self._stored[path].object for path in sent}
        same = {file.path for file in same_content(self._folder, sent, known)}
        self._forget(sent.keys() - same)

    def _store_plain(
        self, due: Sequence[LocalFile], plain: Sequence[LocalFile], ended: Callable[[], bool]
    ) -> None:
        """Store those of the files outside checkpoints that are due."""
        if all(map(self._has, due)) or ended():
            return
        self._check_owner(False)
        files = {file.path: file for file in plain}
        models = saved_models({*files, *self._graphs})  # a program may delete one to write another
        held = self._withdraw_models(models, due)

        def send(wanted: Callable[[str], bool]) -> None:
            new = [file for file in due if wanted(file.path) and not self._has(file)]
            sent = self._send(sorted(new), ended)
            if sent.files:
                log.info("stored %s, %s", counted(sent.files, "file"), sent)

        send(lambda path: path not in held and path not in models and path != COMPLETION)
        send(lambda path: path in models and all(self._has(files[it]) for it in models[path]))
        self._graphs |= {path for path in models.keys() & files.keys() if self._has(files[path])}
        # The completion record comes last, because it vouches for all the others.
        send(lambda path: path == COMPLETION)

    def _withdraw_models(
        self,
        models: Mapping[str, Sequence[str]],
        due: Sequence[LocalFile],
    ) -> set[str]:
        """Empty the saved_model.pb of each SavedModel of which other parts are to be sent.

        It is not deleted, because the credentials may not allow that.

        Returns:
            The parts that must wait, because the store did not accept it.
        """
        held: set[str] = set()
        for graph, parts in models.items():
            of_model = set(parts)
            new = [file for file in due if file.path in of_model]
            try:
                if graph in self._graphs and not all(map(self._has, new)):
                    self._forget([graph])
                    self._store.write(self._run.output / graph, b"")
                    self._graphs.discard(graph)
            except StepError as error:
                self.note(graph, error)
                held.update(file.path for file in new)
        return held

    def _learn_models(self, scan: Scan) -> None:
        """Find out which SavedModels on this disk are those in the store, as after a restore.

        To send their parts again would leave the store without them if this pod died meanwhile.
        """
        for graph, parts in saved_models(scan.files).items():
            if graph in self._graphs:
                files = {path: scan.files[path] for path in (graph, *parts)}
                with suppress(ObjectNotFoundError):
                    known = {
                        path: self._store.entry(self._run.output / path, f"{OUTPUT}/{path}")
                        for path in files
                    }
                    same = same_content(self._folder, files, known)
                    if len(same) == len(files):
                        self._stored |= {it.path: _Stored(it, known[it.path]) for it in same}

    def _store_step(
        self,
        step: int,
        files: frozenset[LocalFile],
        plain: Sequence[LocalFile],
        ended: Callable[[], bool],
    ) -> None:
        address = self._run.checkpoints / str(step)
        prefix = f"{CHECKPOINTS}/{step}/"
        paths = {file.path: file for file in files}
        self._check_owner(False)
        if step in self._remote:
            # The step is half sent, or was written again, so readers must not trust it now. Its
            # objects are not compared: a step found damaged is also written again.
            self._published.pop(step, None)
            self._store.delete(address / MANIFEST)
        self._remote.add(step)
        self._inherited.discard(step)
        sent = self._send((file for file in sorted(files) if not self._has(file)), ended)
        if not all(map(self._has, files)):
            return
        objects = [self._stored[path].object for path in paths]
        manifest = Manifest.of(
            "checkpoint",
            [replace(item, key=item.key.removeprefix(f"{OUTPUT}/{prefix}")) for item in objects],
            self._run_id,
            self._attempt,
            {"step": step, "files": sorted(f.path for f in plain if not name_problem(f.path))},
        )
        self._check_owner(True)
        self._store.write(address / MANIFEST, manifest.to_bytes(), "application/json")
        self._published[step] = files
        log.info("stored checkpoint %d: %s, %s", step, counted(len(files), "file"), sent)

    def _send(self, files: Iterable[LocalFile], ended: Callable[[], bool]) -> TransferProgress:
        """Send files in parallel, and record those that arrived."""
        files = list(files)
        progress = TransferProgress("storing", len(files), sum(file.size for file in files))

        def tick() -> None:
            progress.tick()
            self._tick()

        if not files:
            return progress
        wanted = takewhile(lambda _: not ended(), files)
        workers = workers_for(self._store.probe(self._run.base).latency)
        for file, sent in each(self._send_file, wanted, min(workers, len(files)), tick):
            try:
                self._stored[file.path] = _Stored(file, sent.result())
            except (FileChangedError, FileNotFoundError):
                continue  # the next scan finds the new state
            except Exception as error:  # no error may end the sidecar
                # An error that rejects one file also rejects all others in flight.
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
        return self._store.send(source, target, key, _appending(file.path), self._uploads)

    def _note_reachable(self) -> None:
        """Log the end of an outage, after a request that the store answered."""
        if self._said_away:
            log.info("the store is reachable again")
            self._said_away = False

    def note(self, what: str, error: Exception) -> None:
        """Keep an error for the reply to the trainer, and log it if it is new."""
        text = str(error) if isinstance(error, StepError) else f"{type(error).__name__}: {error}"
        if isinstance(error, StoreUnavailableError):
            if not self._said_away:
                log.warning("the store is unreachable; retrying until it responds: %s", text)
            self.away = self._said_away = True
            self.trouble["the store"] = text
            return
        if isinstance(error, ConfigurationError):
            self.refused, what = True, "the store"
        self.trouble[what] = text
        if text not in self._logged[what]:
            self._logged[what].add(text)
            log.warning("%r failed and will be retried: %s", what, text)


def _appending(path: str) -> bool:
    """Return whether a file only grows, so it is never settled while the trainer runs."""
    name = path.rpartition("/")[2]
    return name.startswith("events.out.tfevents.") or path == PROGRESS


def _by_step(scan: Scan) -> tuple[dict[int, frozenset[LocalFile]], list[LocalFile]]:
    """Split the files into those of each checkpoint, and the rest.

    A checkpoint with its own `manifest.json` cannot have ours. Its files are sent like any others,
    and readers do not treat it as a verifiable checkpoint.
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
    """Return the step of the checkpoint that a path below OUTPUT_DIR belongs to, if any."""
    match = _STEP.match(path)
    return int(match[1]) if match else None


def unnumbered(scan: Scan) -> list[str]:
    """Return the entries of the folder of checkpoints that are no checkpoints, so never restored.

    The temporary names of other libraries do not count.
    """
    names = {"/".join(path.split("/")[:2]) for path in scan.files if _is_unnumbered(path)}
    return sorted(it for it in names if "tmp" not in it and "temp" not in it)


def _is_unnumbered(path: str) -> bool:
    return path.startswith(f"{CHECKPOINTS}/") and _step_of(path) is None
