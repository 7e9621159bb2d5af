"""The wheel in empty environments, outside the checkout: each extra alone, and a run on a CSV."""

import ast
import json
import os
import random
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from functools import cache
from importlib.util import resolve_name
from pathlib import Path

import pytest

from tests.environments import ROOT

pytestmark = pytest.mark.slow
# What is started with each extra alone: the component of a step, or a program `python -m`.
STEPS = {
    "tools": ("preflight", "prepare_data", "launch_tfjob", "sync_output", "finish"),
    "trainer": ("evaluate", "publish"),
}
PROGRAMS = {
    "tools": ("uploader.__main__", "components.launch_tfjob.setup.__main__"),
    "trainer": ("trainer.__main__",),
    "serve": ("serving.server", "pipelines.commands.serve"),
    "local": ("pipelines.__main__", "pipelines.local.pipeline_process"),
}
# What is missing by intent; serving/server.py and pipelines/local/embedded_store.py report it: the
# server in an environment of `local`, and the embedded store beside the server.
BESIDE = {
    "tools": {"tensorflow"},  # only the training and the exported model call these functions
    "local": {"kserve", "fastapi", "prometheus_client", "starlette", "h11", "uvicorn"},
    "serve": {"swift", "eventlet"},
    "trainer": {"kubeflow"},  # evaluate and publish create no job
}
# The modules of the project that an extra reaches, at least: an import that `imports` cannot
# resolve would remove modules from the tests without a failure.
LEAST = {"tools": 270, "trainer": 200, "serve": 118, "local": 405}
UV = shutil.which("uv") or str(ROOT / ".tools/bin/uv")
# Written by every process at its end: modules under a bare name, and files under two names.
WATCH = """
import atexit, json, os, sys

MAIN = ("__main__", "__mp_main__")  # the program itself, and as multiprocessing calls it

def note():
    modules = {n: getattr(m, "__file__", None) or "" for n, m in list(sys.modules.items())}
    ours = {n: f for n, f in modules.items() if "kfp_tfjob" in f and n not in MAIN}
    wrong = [n for n, f in ours.items() if not n.startswith("kfp_tfjob")]
    wrong += [f for f in set(ours.values()) if list(ours.values()).count(f) > 1]
    if ours:
        with open(os.environ["SEEN"], "a") as file:
            file.write(json.dumps([sys.orig_argv, wrong]) + "\\n")

def leave(code, leave=os._exit):
    note()
    leave(code)

atexit.register(note)
os._exit = leave
"""

# All modules, but for packages that are missing by intent.
IMPORTS = """
import importlib

for name in {names}:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name.partition(".")[0] not in {beside}:
            raise
"""


def call(*command: str | Path, **more: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*map(str, command)], capture_output=True, text=True, **more)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    call(UV, "build", "--wheel", "-o", folder, ROOT, check=True)
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Callable[[str], Path]:
    """Give the folder `bin` of an environment that has one extra in the locked versions."""
    found: dict[str, Path] = {}

    def install(extra: str) -> Path:
        if extra not in found:
            folder = tmp_path_factory.mktemp(extra)
            kinds = ("--no-default-groups", "--no-emit-project", "--no-hashes")
            locked = call(UV, "export", "--locked", *kinds, "--extra", extra, cwd=ROOT, check=True)
            (folder / "locked").write_text(locked.stdout)
            call(UV, "venv", "--python", sys.executable, folder / "env", check=True)
            wanted = f"kfp-tfjob[{extra}] @ {wheel.as_uri()}"
            python = ("--python", folder / "env/bin/python")
            done = call(UV, "pip", "install", *python, "-c", folder / "locked", wanted)
            assert done.returncode == 0, done.stderr
            found[extra] = folder / "env/bin"
        return found[extra]

    return install


def bare(folder: Path, programs: Path) -> dict[str, object]:
    path = os.pathsep.join([str(programs), "/usr/bin", "/bin"])
    return {"cwd": folder, "env": {"HOME": str(folder), "PATH": path}}


def test_the_wheel_of_the_source_distribution_is_the_same(wheel: Path, tmp_path: Path) -> None:
    """In a checkout, four packages are links, which neither distribution has."""
    call(UV, "build", "--sdist", "-o", tmp_path, ROOT, check=True)
    (source,) = tmp_path.glob("*.tar.gz")
    call(UV, "build", "--wheel", "-o", tmp_path / "again", source, check=True)
    assert (tmp_path / "again" / wheel.name).read_bytes() == wheel.read_bytes()
    assert "kfp_tfjob/components/step.py" in zipfile.ZipFile(wheel).namelist()


def reachable(extra: str) -> set[str]:
    """Return the modules of the project that an extra may load, by every import, lazy ones too."""
    steps = [f"components.{name}.component" for name in STEPS.get(extra, ())]
    waiting = [f"kfp_tfjob.{name}" for name in (*steps, *PROGRAMS[extra])]
    found: set[str] = set()
    while waiting:
        name = waiting.pop()
        path = ROOT.joinpath(*name.split("."))
        files = [it for it in (path / "__init__.py", path.with_suffix(".py")) if it.is_file()]
        if name in found or name.partition(".")[0] != "kfp_tfjob" or not files:
            continue
        found.add(name)
        waiting.append(name.rpartition(".")[0])
        if name != "kfp_tfjob":  # its Client loads only for a user who asks for it
            waiting += imports(files[0])
    return found


@cache
def imports(path: Path) -> list[str]:
    """Return what a file imports; `from a import b` may mean the module a.b."""
    found: list[str] = []
    waiting: list[ast.AST] = [ast.parse(path.read_text())]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            waiting += node.orelse
            continue
        if isinstance(node, ast.FunctionDef) and node.name == "__getattr__":
            continue  # loads only when a name is asked for
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            package = ".".join(path.relative_to(ROOT).parent.parts)
            module = resolve_name("." * node.level + (node.module or ""), package)
            found += [module, *(f"{module}.{alias.name}" for alias in node.names)]
        waiting += ast.iter_child_nodes(node)
    return found


@pytest.mark.parametrize("extra", PROGRAMS)
def test_everything_that_an_extra_starts_can_be_imported(extra, installed, tmp_path) -> None:
    names = reachable(extra)
    assert len(names) >= LEAST[extra]
    program = IMPORTS.format(names=sorted(names), beside=sorted(BESIDE[extra]))
    done = call(installed(extra) / "python", "-c", program, **bare(tmp_path, installed(extra)))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("extra", "name"), [(extra, name) for extra, names in STEPS.items() for name in names]
)
def test_a_step_starts_with_its_extra_alone(extra, name, installed, tmp_path) -> None:
    """The executor of KFP runs the source of the step's function, which refuses its inputs."""
    program = (
        "import json, sys\n"
        f"from kfp_tfjob.components.{name}.component import {name} as it\n"
        "spec, values = it.component_spec, {'Integer': 1, 'Boolean': True}\n"
        "values |= {'Dict': {}, 'TaskConfig': {}}\n"
        "given = {n: values.get(i.type, 'x') for n, i in spec.inputs.items()"
        " if isinstance(i.type, str) and '@' not in i.type}\n"
        "print(json.dumps([given, spec.implementation.container.command[-1]]))"
    )
    python = installed(extra) / "python"
    given = call(python, "-c", program, **bare(tmp_path, installed(extra)))
    assert given.returncode == 0, given.stderr
    inputs, source = json.loads(given.stdout)
    (tmp_path / "step.py").write_text(source)
    task = {
        "inputs": {"parameterValues": inputs},
        "outputs": {"outputFile": str(tmp_path / "out.json")},
    }
    done = call(
        *(python, "-m", "kfp.dsl.executor_main", "--component_module_path", tmp_path / "step.py"),
        *("--function_to_execute", name, "--executor_input", json.dumps(task)),
        **bare(tmp_path, installed(extra)),
    )
    said = done.stdout + done.stderr
    assert done.returncode and "ModuleNotFoundError" not in said and "ImportError" not in said, said


@pytest.mark.parametrize(
    ("extra", "name"),
    [(extra, name) for extra in ("tools", "trainer") for name in PROGRAMS[extra]],
)
def test_a_program_starts_with_its_extra_alone(extra, name, installed, tmp_path) -> None:
    """Without an environment it says what is missing, and exits with code 2."""
    module = f"kfp_tfjob.{name.removesuffix('.__main__')}"
    done = call(installed(extra) / "python", "-m", module, **bare(tmp_path, installed(extra)))
    assert done.returncode == 2, done.stdout + done.stderr


def test_the_command_says_which_extra_it_lacks(installed, tmp_path) -> None:
    (tmp_path / "x.csv").write_text("a,y\n1,0\n")
    here = bare(tmp_path, installed("tools"))
    run = ("run", "--data", "x.csv", "--label", "y")
    done = call(installed("tools") / "kfp-tfjob", *run, **here)
    assert done.returncode == 1
    assert "its extra `local`" in done.stderr


def test_the_extra_local_runs_the_pipeline_on_a_csv(installed, tmp_path) -> None:
    """The user's model is a package `trainer` that uses a package `components` of its own."""
    draw = random.Random(1)
    rows = [[draw.gauss(0, 1) for _ in range(3)] for _ in range(1000)]
    lines = [f"{a:.4f},{b:.4f},{c:.4f},{int(a + b > 0)}\n" for a, b, c in rows]
    (tmp_path / "x.csv").write_text("a,b,c,y\n" + "".join(lines))
    code = tmp_path / "code" / "trainer"
    (code / "components").mkdir(parents=True)
    (code / "__init__.py").write_text(f"from {code.name}.task import build\n")
    (code / "components" / "__init__.py").write_text("UNITS = 8\n")
    (code / "task.py").write_text(
        f"from {code.name}.components import UNITS\n"
        "from kfp_tfjob.trainer.models import mlp\n"
        "def build(dataset): return mlp(dataset, hidden=[UNITS])\n"
    )
    seen = tmp_path / "seen"
    (tmp_path / "watch").mkdir()
    (tmp_path / "watch/sitecustomize.py").write_text(WATCH)
    here = bare(tmp_path, installed("local"))
    here["env"] |= {"PYTHONPATH": str(tmp_path / "watch"), "SEEN": str(seen)}
    command = installed("local") / "kfp-tfjob"
    for words in (["--help"], ["compile"], ["explain"], ["explain", "gate"]):
        assert call(command, *words, **here).returncode == 0
    assert (tmp_path / "compiled/tfjob_training.yaml").exists()
    job = call(command, "render", "--data", "s3://b/x.csv", "--label", "y", **here)
    assert job.returncode == 0, job.stderr
    data = ("--data", "x.csv", "--label", "y", "--model", "code/trainer:build")
    done = call(command, "run", *data, "--set", "train_epochs=2", **here)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "verdict    blessed:" in done.stdout
    processes = [json.loads(line) for line in seen.read_text().splitlines()]
    started = " ".join(" ".join(command) for command, _ in processes)
    for name in ("kfp_tfjob.trainer", "kfp_tfjob.uploader", "kfp.dsl.executor_main"):
        assert name in started
    assert not [item for item in processes if item[1]]


def test_uv_installs_the_command_as_a_tool(wheel, tmp_path) -> None:
    folders = {"UV_TOOL_DIR": str(tmp_path / "tools"), "UV_TOOL_BIN_DIR": str(tmp_path / "bin")}
    wanted = f"kfp-tfjob[local] @ {wheel.as_uri()}"
    python = ("--python", sys.executable)
    done = call(UV, "tool", "install", *python, wanted, env=os.environ | folders)
    assert done.returncode == 0, done.stderr
    assert call(tmp_path / "bin/kfp-tfjob", "--version", cwd=tmp_path).returncode == 0


def test_the_wheel_has_the_manifests_that_install_prints(installed, tmp_path) -> None:
    command = (installed("tools") / "kfp-tfjob", "install", "--with", "quota")
    done = call(*command, **bare(tmp_path, installed("tools")))
    assert done.returncode == 0, done.stderr
    for kind in ("Role", "RoleBinding", "NetworkPolicy", "ResourceQuota"):
        assert f"kind: {kind}\n" in done.stdout
