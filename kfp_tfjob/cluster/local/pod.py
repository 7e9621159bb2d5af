"""Runs one pod as processes on this machine, as the kubelet would.

Init containers run one after the other; a native sidecar starts among them and keeps running. Then
the containers start. When they have ended, the sidecars get SIGTERM and the pod's grace period.
After that, the pod's phase is final. Called by `backend.py` for each replica.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from kfp_tfjob.common import files
from kfp_tfjob.jobs.kinds import kind_of_pod
from kfp_tfjob.jobs.objects import Object

from .container import (
    LocalContainer,
    MissingObjectError,
    PodInfo,
    environment,
    expand,
    to_host_path,
)

log = logging.getLogger(__name__)

# Seconds; a person at a laptop does not want to wait as long as a node does.
LONGEST_GRACE = 10.0


class LocalPod:
    """A pod from its start to its end.

    Args:
        name: The pod's name.
        labels: Labels in addition to the template's.
        template: The pod's template in the job's manifest.
        claims: The folder with a folder per PersistentVolumeClaim.
        secrets: The folder with a folder per Secret.
        folder: The pod's own folder, for its emptyDir volumes.
        injected: Variables for the main container, as an operator injects them.
        line: Called with a container's name and a line.
        changed: Called after each change of the pod's state.
        shared: Variables for all containers.
    """

    def __init__(
        self,
        name: str,
        labels: Mapping[str, str],
        template: Object,
        claims: Path,
        secrets: Path,
        folder: Path,
        injected: Mapping[str, str],
        line: Callable[[str, str], None],
        changed: Callable[[], None],
        shared: Mapping[str, str] | None = None,
    ) -> None:
        metadata = template["metadata"]
        self.metadata = {
            "name": name,
            "namespace": "local",
            "labels": dict(metadata["labels"]) | dict(labels),
            "annotations": dict(metadata["annotations"]),
        }
        self.phase = "Pending"
        self.reason = ""
        self._spec, self._folder = template["spec"], folder
        self._claims, self._secrets = claims, secrets
        self._injected, self._line = injected, line
        self._shared = dict(shared or {})
        self._notify = changed
        self._volumes: dict[str, Path] = {}
        self._short_tmp: TemporaryDirectory[str] | None = None
        self._init: list[LocalContainer] = []
        self._sidecars: list[LocalContainer] = []
        self._main: list[LocalContainer] = []
        self._change = threading.Condition(threading.RLock())
        self._stopping = False
        self._kill_at: float | None = None
        self._sidecar_grace = float(self._spec["terminationGracePeriodSeconds"])
        self._thread = threading.Thread(target=self._run, name=f"pod {name}", daemon=True)

    def start(self) -> None:
        """Start the pod; `phase` shows its progress."""
        self._thread.start()

    def stop(self, sidecar_seconds: float | None = None) -> None:
        """Stop the pod as a deletion would, and return at once."""
        grace = min(float(self._spec["terminationGracePeriodSeconds"]), LONGEST_GRACE)
        with self._change:
            if sidecar_seconds is not None:
                self._sidecar_grace = min(self._sidecar_grace, sidecar_seconds)
            if not self._stopping:
                self._stopping = True
                self._kill_at = time.monotonic() + grace
                for container in (*self._init, *self._main):
                    container.stop()
            self._change.notify_all()

    def annotate(self, values: Mapping[str, str]) -> None:
        """Change annotations, and update the volumes that contain them."""
        with self._change:
            self.metadata["annotations"].update(values)
            self._write_podinfo()

    def join(self) -> None:
        """Wait until all of the pod's processes have ended."""
        self._thread.join()

    def to_dict(self) -> Object:
        """Return the pod in Kubernetes' form."""
        with self._change:
            status: Object = {
                "phase": self.phase,
                "initContainerStatuses": [
                    container.status for container in (*self._init, *self._sidecars)
                ],
                "containerStatuses": [container.status for container in self._main],
            }
            if self.reason:
                status["reason"] = self.reason
            return {"metadata": self.metadata, "spec": self._spec, "status": status}

    def _run(self) -> None:
        succeeded = False
        try:
            self._folder.mkdir(parents=True)
            self._make_volumes()
            if self._run_init():
                succeeded = self._run_main()
        except (OSError, MissingObjectError) as error:
            self.reason = "CreateContainerConfigError"
            self._line("pod", f"{type(error).__name__}: {error}")
        except Exception:
            self.reason = "BackEndError"  # an exception in a thread would otherwise remain unseen
            log.exception("a bug of the local back end ended the pod %s", self.metadata["name"])
        finally:
            self._end_sidecars()
            if self._short_tmp:
                self._short_tmp.cleanup()
            self._set("Succeeded" if succeeded else "Failed")

    def _make_volumes(self) -> None:
        """Create or find the folder for each volume.

        Raises:
            MissingObjectError: A Secret or a ConfigMap does not exist.
        """
        for volume in self._spec.get("volumes", []):
            name = volume["name"]
            if claim := volume.get("persistentVolumeClaim"):
                path = self._claims / claim["claimName"]
            elif secret := volume.get("secret"):
                path = self._secrets / secret["secretName"]
                if not path.is_dir():
                    if not secret.get("optional"):
                        raise MissingObjectError(f"there is no Secret {secret['secretName']}")
                    path = self._folder / name
            elif config_map := volume.get("configMap"):
                path = self._secrets.with_name("config_maps") / config_map["name"]
                if not path.is_dir():
                    raise MissingObjectError(f"there is no ConfigMap: {path} is no folder")
            else:
                path = self._folder / name
            path.mkdir(parents=True, exist_ok=True)
            self._volumes[name] = path
        with self._change:
            self._write_podinfo()

    def _write_podinfo(self) -> None:
        """Write the downward API's files, each with one rename."""
        info = PodInfo(self.metadata, self._secrets)
        for volume in self._spec.get("volumes", []):
            folder = self._volumes.get(volume["name"])
            for entry in volume.get("downwardAPI", {}).get("items", []) if folder else []:
                field = entry["fieldRef"]["fieldPath"]
                files.write(folder / entry["path"], info.field(field))

    def _run_init(self) -> bool:
        """Run the init containers and start the sidecars; return False if one failed."""
        for spec in self._spec.get("initContainers", []):
            with self._change:
                if self._stopping:
                    return False
                sidecar = spec.get("restartPolicy") == "Always"
                container = self._container(spec, restarts=sidecar)
                (self._sidecars if sidecar else self._init).append(container)
            if sidecar:
                continue
            self._wait([container])
            if container.exit_code:
                return False
        return True

    def _run_main(self) -> bool:
        """Run the main containers to their end; return whether all of them succeeded."""
        with self._change:
            if self._stopping:
                return False
            self._main = [self._container(spec) for spec in self._spec["containers"]]
        self._set("Running")
        self._wait(self._main, self._spec.get("activeDeadlineSeconds"))
        return not self.reason and not any(container.exit_code for container in self._main)

    def _wait(self, containers: list[LocalContainer], deadline: float | None = None) -> None:
        """Wait until containers have ended; end them at the pod's deadline or after a stop."""
        end = time.monotonic() + deadline if deadline else None
        with self._change:
            while not all(container.ended.is_set() for container in containers):
                clock = time.monotonic()
                if self._kill_at is not None and clock >= self._kill_at:
                    for container in containers:
                        container.kill()
                    self._kill_at = None
                if end is not None and clock >= end and not self._stopping:
                    self.reason = "DeadlineExceeded"
                    self.stop()
                times = [at for at in (self._kill_at, None if self._stopping else end) if at]
                self._change.wait(max(min(times) - clock, 0.01) if times else None)

    def _end_sidecars(self) -> None:
        """Stop the sidecars, and kill them at the end of their grace period."""
        start = time.monotonic()
        for sidecar in self._sidecars:
            sidecar.stop()
        with self._change:
            while not all(sidecar.ended.is_set() for sidecar in self._sidecars):
                # Read each time, because `stop` may shorten the grace period meanwhile.
                remaining = start + self._sidecar_grace - time.monotonic()
                if remaining <= 0:
                    for sidecar in self._sidecars:
                        sidecar.kill()
                self._change.wait(remaining if remaining > 0 else None)

    def _container(self, spec: Object, restarts: bool = False) -> LocalContainer:
        mounts = {
            mount["mountPath"]: self._volumes[mount["name"]] / mount.get("subPath", "")
            for mount in spec.get("volumeMounts", [])
        }
        is_main = spec["name"] == kind_of_pod({"metadata": self.metadata}).container
        info = PodInfo(self.metadata, self._secrets)
        injected = self._shared | (dict(self._injected) if is_main else {})
        values = environment(spec, info, mounts, injected)
        with suppress(OSError):  # without a writable temporary folder, the long path stays
            values |= self._shortened_tmp(Path(values.get("TMPDIR", "")))
        words = [*spec.get("command", []), *spec.get("args", [])]
        name = spec["name"]
        return LocalContainer(
            name=name,
            command=[to_host_path(expand(word, values), mounts) for word in words],
            environment=values,
            folder=self._folder,
            restarts=restarts,
            line=lambda text: self._line(name, text),
            changed=self._changed,
        )

    def _shortened_tmp(self, folder: Path) -> dict[str, str]:
        """Return TMPDIR as a short link to its folder in this pod; empty if it is elsewhere.

        The path of a Unix socket has at most 107 bytes. Programs create sockets in TMPDIR, for
        example with multiprocessing.Manager, and a project's folder alone may be too long for that.

        Raises:
            OSError: The link cannot be created.
        """
        if not folder.is_relative_to(self._folder):
            return {}
        if not self._short_tmp:
            self._short_tmp = TemporaryDirectory(prefix="kfp-tfjob-", ignore_cleanup_errors=True)
        link = Path(self._short_tmp.name, "tmp")
        if not link.is_symlink():
            link.symlink_to(folder)
        return {"TMPDIR": str(link)}

    def _set(self, phase: str) -> None:
        with self._change:
            self.phase = phase
        self._changed()

    def _changed(self) -> None:
        with self._change:
            self._change.notify_all()
        self._notify()
