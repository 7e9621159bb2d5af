"""What the local back end makes of the containers of a manifest, and their processes."""

import os
import sys
import tempfile
from pathlib import Path
from threading import Event
from typing import Any

import psutil
import pytest

from kfp_tfjob.cluster.local import container
from kfp_tfjob.cluster.local.container import (
    LocalContainer,
    PodInfo,
    environment,
    expand,
    to_host_path,
)
from kfp_tfjob.cluster.local.pod import LocalPod
from kfp_tfjob.common.escaping import MASK, uncolored
from kfp_tfjob.jobs import log_masking
from tests.waiting import until


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("$(A)/x", "1/x"),
        ("$(A)$(B)", "1two"),
        ("$(NO)", "$(NO)"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$1"),
        ("$A ${A} $ $(", "$A ${A} $ $("),
        ("$$", "$"),
        ("$()", "$()"),
    ],
)
def test_references_are_expanded_as_kubernetes_does(text, expanded):
    assert expand(text, {"A": "1", "B": "two"}) == expanded


def test_only_whole_paths_are_placed():
    mounts = {"/a": Path("/1"), "/a/b": Path("/2")}
    places = {"/a/x": "/1/x", "/a/b/x": "/2/x", "/a": "/1", "/ab": "/ab", "--out=/a": "--out=/a"}
    assert {path: to_host_path(path, mounts) for path in places} == places


def test_the_environment_of_a_container(tmp_path, monkeypatch):
    others = {"TF_CONFIG", "DATA_DIR", "MAX_RESTARTS", "PYTHONSAFEPATH"}
    for name in others:
        monkeypatch.setenv(name, "of somebody else")
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys/id").write_text("secret\n")
    (tmp_path / "keys/region").write_text("us-east-1\n")
    monkeypatch.setattr(log_masking, "_hidden", set())
    pod = PodInfo({"name": "p-0", "labels": {"a/b": "c"}}, tmp_path)

    def secret(key: str, optional: bool) -> dict:
        return {"secretKeyRef": {"name": "keys", "key": key, "optional": optional}}

    env = [
        {"name": "DIR", "value": "/mnt/x"},
        {"name": "FILE", "value": "$(DIR)/f"},
        {"name": "PRICE", "value": "5$$(DIR)"},
        {"name": "ID", "valueFrom": secret("id", False)},
        {"name": "NONE", "valueFrom": secret("none", True)},
        {"name": "AWS_REGION", "valueFrom": secret("region", True)},
        {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "LABEL", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['a/b']"}}},
    ]
    found = environment({"env": env}, pod, {"/mnt": tmp_path / "v"}, {"MORE": "1"})
    assert found["FILE"] == f"{tmp_path}/v/x/f"
    wanted = {"PRICE": "5$(DIR)", "ID": "secret", "POD": "p-0", "LABEL": "c"}
    assert {name: found[name] for name in wanted} == wanted
    # The program may print it. What a Secret of the store names is no secret.
    assert log_masking.Mask()("secret in us-east-1") == f"{MASK} in us-east-1"
    assert "NONE" not in found and not others & set(found) and found["MORE"] == "1"
    with pytest.raises(LookupError, match="key none"):
        environment({"env": [{"name": "X", "valueFrom": secret("none", False)}]}, pod, {}, {})


BAR = """
import sys, time
for step in range(30):
    sys.stdout.write(f"\\rstep {step} of 30")
    sys.stdout.flush()
    time.sleep(0.1)
print("\\nall done", end="")
"""


def test_a_progress_bar_has_lines_before_its_end(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(container, "_BAR_SECONDS", 0.5)
    lines: list[str] = []
    command = [sys.executable, "-c", BAR]
    made = LocalContainer("c", command, {}, tmp_path, False, lines.append, Event().set)
    assert made.ended.wait(300)
    assert len(lines) >= 4 and lines[0].startswith("step ") and "\r" not in lines[0]
    assert lines[-2:] == ["step 29 of 30", "all done"] and not any("\r" in line for line in lines)


def test_a_bar_of_keras_is_its_last_state(tmp_path: Path) -> None:
    code = (
        "import keras; bar = keras.utils.Progbar(40, unit_name='step')\n"
        "for step in range(40): bar.update(step + 1, [('loss', step)])\n"
        "print('all done')"
    )
    lines: list[str] = []
    made = LocalContainer(
        "c",
        [sys.executable, "-c", code],
        dict(os.environ),
        tmp_path,
        False,
        lines.append,
        Event().set,
    )
    assert made.ended.wait(300)
    bar, last = (uncolored(line) for line in lines[-2:])
    assert "40/40" in bar and "39/40" not in bar and "\r" not in bar and last == "all done"


def test_output_without_lines_needs_no_memory_for_all_of_it(tmp_path: Path) -> None:
    lines: list[str] = []
    command = [sys.executable, "-c", "for _ in range(300): print('x' * 100_000, end='')"]
    made = LocalContainer("c", command, {}, tmp_path, False, lines.append, Event().set)
    assert made.ended.wait(300)
    assert sum(map(len, lines)) == 30_000_000 and max(map(len, lines)) < 2_000_000


def test_a_pod_ends_at_its_deadline(tmp_path: Path) -> None:
    program = {"name": "main", "command": [sys.executable, "-c", "import time; time.sleep(30)"]}
    spec = {"terminationGracePeriodSeconds": 1, "activeDeadlineSeconds": 1, "containers": [program]}
    template = {"metadata": {"labels": {}, "annotations": {}}, "spec": spec}
    folders = (tmp_path / name for name in ("claims", "secrets", "pod"))
    pod = LocalPod("p", {}, template, *folders, {}, lambda *_: None, Event().set)
    pod.start()
    pod.join()
    status = pod.to_dict()["status"]
    assert (status["phase"], status.get("reason")) == ("Failed", "DeadlineExceeded")


def test_a_config_map_is_a_folder_beside_the_secrets(tmp_path: Path) -> None:
    (tmp_path / "config_maps/hosts").mkdir(parents=True)
    (tmp_path / "config_maps/hosts/a").write_text("of the map")
    read = "import pathlib, sys; sys.exit(pathlib.Path('/hosts/a').read_text() != 'of the map')"
    program = {"name": "main", "command": [sys.executable, "-c", read]}
    program["volumeMounts"] = [{"name": "config-map-0", "mountPath": "/hosts"}]
    for name, reason in (("hosts", None), ("none", "CreateContainerConfigError")):
        volume = {"name": "config-map-0", "configMap": {"name": name}}
        spec = {"terminationGracePeriodSeconds": 1, "volumes": [volume], "containers": [program]}
        template = {"metadata": {"labels": {}, "annotations": {}}, "spec": spec}
        folders = (tmp_path / it for it in ("claims", "secrets", f"pod-{name}"))
        pod = LocalPod("p", {}, template, *folders, {}, lambda *_: None, Event().set)
        pod.start()
        pod.join()
        assert pod.to_dict()["status"].get("reason") == reason


def test_a_mount_may_show_a_folder_of_its_volume(tmp_path: Path) -> None:
    code = "import pathlib, sys; pathlib.Path(sys.argv[1]).write_text('42')"
    program = {
        "name": "main",
        "command": [sys.executable, "-c", code, "/results/answer"],
        "volumeMounts": [{"name": "output", "mountPath": "/results", "subPath": "attempt-1"}],
    }
    claim = {"name": "output", "persistentVolumeClaim": {"claimName": "c"}}
    spec = {"terminationGracePeriodSeconds": 1, "containers": [program], "volumes": [claim]}
    template = {"metadata": {"labels": {}, "annotations": {}}, "spec": spec}
    (tmp_path / "claims/c/attempt-1").mkdir(parents=True)
    folders = (tmp_path / name for name in ("claims", "secrets", "pod"))
    pod = LocalPod("p", {}, template, *folders, {}, lambda *_: None, Event().set)
    pod.start()
    pod.join()
    assert pod.to_dict()["status"]["phase"] == "Succeeded"
    assert (tmp_path / "claims/c/attempt-1/answer").read_text() == "42"


def _pod(folder: Path, program: dict[str, Any], **spec: Any) -> LocalPod:
    spec = {"terminationGracePeriodSeconds": 1, "containers": [{"name": "main"} | program]} | spec
    template = {"metadata": {"labels": {}, "annotations": {}}, "spec": spec}
    folders = (folder / name for name in ("claims", "secrets", "pod"))
    return LocalPod("p", {}, template, *folders, {}, lambda *_: None, Event().set)


MANAGER = """
import multiprocessing, pathlib, sys, tempfile
if __name__ == "__main__":
    with multiprocessing.Manager() as manager:
        manager.dict()["a"] = 1
    pathlib.Path(tempfile.gettempdir(), "name").write_text(tempfile.gettempdir())
    sys.exit(int(sys.argv[1]))
"""


@pytest.mark.parametrize("code", [0, 3])
def test_a_unix_socket_fits_into_the_temporary_folder_of_a_deep_project(
    tmp_path: Path, code: int
) -> None:
    """multiprocessing.Manager failed with `AF_UNIX path too long`."""
    folder = tmp_path / ("project" * 10)
    make = "import os; os.makedirs('job/tmp')"
    tmp = [{"name": "TMPDIR", "value": "/job/tmp"}]
    program = {
        "command": [sys.executable, "-c", MANAGER, str(code)],
        "volumeMounts": [{"name": "job", "mountPath": "/job"}],
        "env": tmp,
    }
    pod = _pod(
        folder,
        program,
        volumes=[{"name": "job", "emptyDir": {}}],
        initContainers=[{"name": "setup", "command": [sys.executable, "-c", make]}],
    )
    pod.start()
    pod.join()
    (status,) = pod.to_dict()["status"]["containerStatuses"]
    assert status["state"]["terminated"]["exitCode"] == code
    link = Path((folder / "pod/job/tmp/name").read_text())
    assert link.is_relative_to(tempfile.gettempdir())
    assert not link.is_symlink() and not link.parent.exists()


STAYS = """
import os, pathlib, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
pathlib.Path("part").write_text(str(os.getpid()))
os.rename("part", "pid")
time.sleep(600)
"""


def test_no_program_of_a_shell_outlives_its_pod(tmp_path: Path) -> None:
    (tmp_path / "stays.py").write_text(STAYS)
    shell = ["sh", "-c", f"{sys.executable} {tmp_path}/stays.py; true"]
    pod = _pod(tmp_path, {"command": [sys.executable, "-m", "kfp_tfjob.supervisor", "--", *shell]})
    pod.start()
    until((tmp_path / "pod/pid").exists)
    program = int((tmp_path / "pod/pid").read_text())
    pod.stop()
    pod.join()
    until(lambda: not psutil.pid_exists(program))
