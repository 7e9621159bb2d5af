"""model_code: the forms it may have, and what is wrong with code before it is ever imported."""

import functools
import json
import struct
import subprocess
import sys
import typing
import zipfile
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from kfp_tfjob.checks.finding import Status
from kfp_tfjob.cluster.backend import BACKEND_VARIABLE
from kfp_tfjob.common.errors import ConfigurationError
from kfp_tfjob.components.code_copy import check_code, save_code
from kfp_tfjob.components.preflight.parameters import defaults
from kfp_tfjob.components.prepare_data.source.readers.own_reader import OwnReader
from kfp_tfjob.components.step import Step
from kfp_tfjob.judging.evaluator_code import EvaluatorCode
from kfp_tfjob.options.container_images import TRAIN
from kfp_tfjob.options.parameters import completed
from kfp_tfjob.pipelines.kubeflow.code_upload import check_code as check_code_here
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.layout import Layout
from kfp_tfjob.storage.store import Store
from kfp_tfjob.user_code import code_files
from kfp_tfjob.user_code.arguments import wrong_strings
from kfp_tfjob.user_code.model_code import Code, ModelCode, as_path
from kfp_tfjob.user_code.syntax import OfImage, SyntaxProblem, named_files, parse
from tests.fuzz.bounds import bounded
from tests.problems import problem_of

STORE = Store("http://127.0.0.1:1")
GOOD = b"def build_model(dataset, units=8, *, rate):\n    return dataset\n"


@pytest.mark.parametrize(
    ("text", "source", "function", "in_image"),
    [
        ("kfp_tfjob.trainer.models:mlp", "kfp_tfjob.trainer.models", "mlp", True),
        ("model.py:build", "model.py", "build", False),
        ("./my_model:build", "./my_model", "build", False),
        ("code.zip:build", "code.zip", "build", False),
        ("folder/:build", "./folder", "build", False),
        ("/srv/model.py:build", "/srv/model.py", "build", False),
        ("s3://bucket/code/model.py:build", "s3://bucket/code/model.py", "build", False),
        ("s3://bucket/code/:build", "s3://bucket/code", "build", False),
    ],
)
def test_forms(text: str, source: str, function: str, in_image: bool) -> None:
    code = ModelCode.parse(text)
    assert (code.source, code.function, code.in_image) == (source, function, in_image)


@pytest.mark.parametrize(
    "text",
    ["", "model.py", "./model.py:", "/:build", ":build", "kfp_tfjob.trainer.models:"]
    + ["s3://b/m.py", "a:1b"],
)
def test_what_names_no_function_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="model_code"):
        ModelCode.parse(text)


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("train.py", "train.py"),
        ("folder/", "./folder"),
        ("/srv/code.zip", "/srv/code.zip"),
        ("s3://bucket/code/", "s3://bucket/code"),
        ("s3://bucket/run.sh", "s3://bucket/run.sh"),
    ],
)
def test_a_program_needs_no_function(text: str, source: str) -> None:
    code = ModelCode.parse(text, of_program=True)
    assert (code.source, code.function, code.in_image) == (source, "", False)
    assert code.entry() == source.rpartition("/")[2]
    named = ModelCode.parse(f"{text}:main", of_program=True)
    assert (named.source, named.function) == (source, "main")


@pytest.mark.parametrize(
    "text", ["", "train.py:", "kfp_tfjob.trainer.models", "folder", "/", "a:1b"]
)
def test_a_program_without_a_path_is_refused(text: str) -> None:
    problem = problem_of(ModelCode.parse, text, True)
    assert problem.path == "model_code" and problem.fix


def test_the_files_of_a_path_alone_lie_where_they_are(
    tmp_path: Path, store: Store, base: S3Address
) -> None:
    """`FOLDER:function` has its own layout: a package keeps its name, a zip loses its folder."""
    files = {"fit.py": b"import lib\n", "lib/__init__.py": b"", "__init__.py": b"", "run.sh": b"x"}
    folder = tmp_path / "my-code"
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
        store.write(base / "code" / name, data)
    whole = ModelCode(str(folder), "").read(None)
    assert (whole.module, whole.files) == ("my-code", files)
    stored = ModelCode(str(base / "code"), "").read(store)
    assert stored.files == files
    script = {"run.sh": b"x"}
    assert ModelCode(str(folder / "run.sh"), "").read(None).files == script
    assert ModelCode(str(base / "code/run.sh"), "").read(store).files == script
    archive = packed(tmp_path / "a.zip", *((f"top/{name}", it) for name, it in files.items()))
    inside = ModelCode(str(archive), "").read(None).files
    assert inside == {f"top/{name}": data for name, data in files.items()}


@pytest.mark.parametrize(
    ("command", "missing"),
    [
        (["python3", "$(JOB_DIR)/code/fit.py", "--data=$(JOB_DIR)/code/lib"], []),
        (["sh", "-c", "cd ${JOB_DIR}/code && python3 $JOB_DIR/code/./lib/a.py; ls"], []),
        (["python3", "$(JOB_DIR)/code/my_code/fit.py"], ["my_code/fit.py"]),
        (["sh", "-c", "cat '$JOB_DIR/code/b.txt' \"${JOB_DIR}/code/c\""], ["b.txt", "c"]),
        (["sh", "-c", "ls $JOB_DIR/code/*.py $JOB_DIR/code/$NAME $JOB_DIR/code/../data"], []),
        (["python3", "/srv/code/fit.py", "code/fit.py"], []),
        (["sh", "-c", "ls '$JOB_DIR/code/b (1).txt'"], ["b"]),
    ],
)
def test_a_path_that_the_copy_does_not_have_is_named(
    command: list[str], missing: list[str]
) -> None:
    code = Code("my_code", {"fit.py": b"", "lib/a.py": b""})
    found = code.problems_of_command(command)
    assert [it.received for it in found] == [f"$(JOB_DIR)/code/{it}" for it in missing]
    assert {it.path for it in found} <= {"train_options.command"}
    assert all("fit.py, lib/a.py" in it.expected for it in found)


@pytest.mark.parametrize(
    "name", ["a/fit (1).py", "my fit.py", "fit,v2.py", "fit;x.py", "fit&co.py", "fit's.py"]
)
@pytest.mark.parametrize(
    "command",
    [["python3", "$(JOB_DIR)/code/NAME"], ["sh", "-c", 'python3 "$(JOB_DIR)/code/./NAME" --x']],
)
def test_a_file_of_the_copy_may_have_any_name(name: str, command: list[str]) -> None:
    command = [word.replace("NAME", name) for word in command]
    assert not Code("code", {name: b""}).problems_of_command(command)
    (problem,) = Code("code", {name: b"x = ("}).problems_of_command(command)
    assert isinstance(problem, SyntaxProblem)


BY_PATH = ["python3", "$(JOB_DIR)/code/pack/task.py"]
RELATIVE, ABSOLUTE = b"from . import model\n", b"import os\nfrom pack import model\n"


@pytest.mark.parametrize("source", [RELATIVE, ABSOLUTE])
@pytest.mark.parametrize("root", ["", "src/"])
@pytest.mark.parametrize(
    "command",
    [
        ["python3", "PATH"],
        ["python3", "-u", "PATH", "--x", "a b", "$(HYPERPARAMETER_FLAGS)"],
    ],
)
def test_a_package_that_is_run_by_a_path_is_refused_with_a_command_that_works(
    tmp_path: Path, source: bytes, root: str, command: list[str]
) -> None:
    """It failed after the data was prepared: Python did not find the package."""
    path = f"{root}pack/task.py"
    files = {path: source + b"import sys; print(sys.argv[1:])\n", f"{root}pack/model.py": b""}
    files[f"{root}pack/__init__.py"] = b""
    code = Code("code", files)
    words = [word.replace("PATH", f"$(JOB_DIR)/code/{path}") for word in command]
    (problem,) = code.problems_of_command(words)
    assert problem.path == "train_options.command" and path in problem.received
    assert isinstance(problem, OfImage) == (source == ABSOLUTE)
    fixed = json.loads(problem.suggestion)
    assert problem.suggestion in problem.fix and not code.problems_of_command(fixed)
    for name, data in files.items():
        (tmp_path / "code" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "code" / name).write_bytes(data)
    runs = [
        subprocess.run(
            [word.replace("$(JOB_DIR)", str(tmp_path)) for word in each],
            capture_output=True,
            text=True,
        )
        for each in (words, fixed)
    ]
    assert runs[0].returncode == 1 and "ImportError" in runs[0].stderr.replace(
        "ModuleNotFoundError", "ImportError"
    )
    assert runs[1].stdout == f"{command[3:]}\n", runs[1].stderr


@pytest.mark.parametrize(
    ("source", "command"),
    [
        (RELATIVE, ["sh", "-c", "cd $(JOB_DIR)/code && exec python3 -m pack.task"]),
        (RELATIVE, ["bash", "$(JOB_DIR)/code/run.sh", "$(JOB_DIR)/code/pack/task.py"]),
        (ABSOLUTE, ["env", "PYTHONPATH=$(JOB_DIR)/code", *BY_PATH]),
        (b"import sys\nsys.path.append('..')\n" + ABSOLUTE, BY_PATH),
        (b"if not __package__: __package__ = 'pack'\n" + RELATIVE, BY_PATH),
        (b"import model\n", BY_PATH),
        (b"try:\n  from . import model\nexcept ImportError:\n  import model\n", BY_PATH),
    ],
)
def test_a_package_that_python_finds_is_right(source: bytes, command: list[str]) -> None:
    files = {"pack/__init__.py": b"", "pack/task.py": source, "pack/model.py": b"", "run.sh": b""}
    assert not Code("code", files).problems_of_command(command)


def test_a_package_in_a_script_of_a_shell_has_a_remedy_in_words() -> None:
    code = Code("code", {"pack/task.py": RELATIVE, "pack/model.py": b""})
    command = ["sh", "-c", "cd $(JOB_DIR)/code && python3 pack/task.py; echo"]
    (problem,) = code.problems_of_command(command)
    assert "python3 -m pack.task" in problem.fix and not problem.suggestion
    (problem,) = Code("code", {"fit.py": RELATIVE}).problems_of_command(
        ["python3", "$(JOB_DIR)/code/fit.py"]
    )
    assert "without the dot" in problem.fix


@pytest.mark.parametrize(
    ("name", "data", "program"),
    [
        ("run.sh", b"echo\n", ["bash"]),
        ("run.sh", b"#!/bin/sh -e\necho\n", ["sh", "-e"]),
        ("fit.py", b"print()\n", ["python3"]),
        ("fit", b"#!/usr/bin/env python\nprint()\n", ["python3"]),
        ("fit", b"\x7fELF\0", ["sh", "-c", 'chmod +x "$0" && exec "$0" "$@"']),
    ],
)
def test_a_file_of_the_copy_is_not_executable(name: str, data: bytes, program: list[str]) -> None:
    code = Code("code", {name: data})
    command = [f"$(JOB_DIR)/code/{name}", "--x"]
    (problem,) = code.problems_of_command(command)
    assert (problem.path, problem.received) == ("train_options.command", command[0])
    assert json.loads(problem.suggestion) == [*program, *command]
    assert not code.problems_of_command([*program, *command])


def test_the_copy_of_an_earlier_run_is_code(store: Store, base: S3Address) -> None:
    """Its manifest was copied as code, so the new run could not write its own."""
    source = b"def build(dataset): pass\n"
    step = Step("preflight", "first", Layout(base), store)
    address = save_code(step, Code("model", {"model.py": source}))
    code = ModelCode.parse(f"{address}:build").read(store)
    assert code.files == {"model.py": source} and not code.problems("build", {})
    again = Step("preflight", "second", Layout(base), store)
    assert save_code(again, code) != address


def test_a_manifest_of_ones_own_is_refused_beside_the_modules(tmp_path: Path) -> None:
    files = {"model.py": b"def build(dataset): pass\n", "manifest.json": b"{}"}
    for folder in ("plain", "package"):
        (tmp_path / folder).mkdir()
        for name, data in files.items():
            (tmp_path / folder / name).write_bytes(data)
    code = ModelCode.parse(f"{tmp_path}/plain:build").read(None)
    command = ["python3", "$(JOB_DIR)/code/model.py"]
    for (problem,) in (code.problems("build", {}), code.problems_of_command(command)):
        assert problem.path == "model_code" and f"{tmp_path}/plain" in problem.received
    # A package is copied as a folder, beside the manifest of the copy.
    (tmp_path / "package/__init__.py").write_text("from .model import build\n")
    assert not ModelCode.parse(f"{tmp_path}/package:build").read(None).problems("build", {})


def test_a_package_of_the_image_is_found_without_running_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its __init__.py may need a library, or a GPU, that this image does not have."""
    stop = b"raise RuntimeError('it ran')\n"
    files = {"imagepack/__init__.py": stop, "imagepack/sub/__init__.py": stop}
    files |= {"imagepack/sub/net.py": GOOD, "imagepack/one.py": b""}
    for name, data in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(data)
    (tmp_path / "imagefile.py").write_bytes(GOOD)
    monkeypatch.syspath_prepend(tmp_path)
    assert ModelCode("imagepack.sub.net", "f").read(None).files == files
    assert ModelCode("imagefile", "f").read(None).files == {"imagefile.py": GOOD}
    package = ModelCode("imagepack.sub", "f").read(None)
    assert package.files == files | {"imagepack/sub.py": stop}
    for missing in ("imagepack.nothing", "imagefile.nothing", "no_such_package"):
        assert not ModelCode(missing, "f").read(None).files


def test_code_of_the_image_is_not_in_the_copy() -> None:
    code = Code("kfp_tfjob", {"fit.py": b""}, in_image=True)
    (problem,) = code.problems_of_command(["python3", "$(JOB_DIR)/code/fit.py"])
    assert problem.path == "train_options.command"


def read(path: Path) -> Code:
    return ModelCode(str(path), "build_model").read(STORE)


def packed(path: Path, *entries: tuple[str, bytes], **changes: object) -> Path:
    """A zip, with attributes of its entries changed."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in entries:
            info = zipfile.ZipInfo(name)
            info.compress_type = zipfile.ZIP_DEFLATED
            for key, value in changes.items():
                setattr(info, key, value)
            archive.writestr(info, data)
    return path


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a person with code in every form, called like modules."""
    for name in ("package/__init__.py", "loose/model.py", "own.py", "package/__pycache__/x.pyc"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(GOOD)
    packed(tmp_path / "zipped.zip", ("zipped/__init__.py", GOOD))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("given", "module", "file"),
    [
        ("./zipped.zip", "zipped", "zipped/__init__.py"),
        ("package", "package", "package/__init__.py"),
        ("./package", "package", "package/__init__.py"),
        ("HERE/package/", "package", "package/__init__.py"),
        ("./loose", "model", "model.py"),
        ("own", "own", "own.py"),
        ("HERE/own.py", "own", "own.py"),
    ],
)
def test_code_in_the_folder_one_stands_in_is_taken_from_there(
    here: Path, given: str, module: str, file: str
) -> None:
    code = ModelCode.parse(as_path(f"{given.replace('HERE', str(here))}:build_model"))
    assert not code.in_image
    found = code.read(STORE)
    assert found == Code(module, {file: GOOD})
    assert not found.problems("build_model", {"rate": 1})


def test_a_folder_one_stands_in_is_code(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(here / "package")
    for given in (".", "./"):
        code = ModelCode.parse(as_path(f"{given}:build_model"))
        assert code.read(STORE).module == code.module == "package"


def test_what_is_not_here_stays_what_it_was(here: Path) -> None:
    unchanged = ("kfp_tfjob.trainer.models:mlp", "other:f", "other", "package:", "")
    for text in (*unchanged, "s3://b/package:f"):
        assert as_path(text) == text
    with pytest.raises(ConfigurationError, match="ziped.zip.*'zipped.zip'"):
        ModelCode.parse("ziped.zip:f").read(STORE)


def test_the_command_line_takes_a_folder_here_for_one(here: Path) -> None:
    from click.testing import CliRunner

    from kfp_tfjob.pipelines.cli import main

    given = ["--data", "s3://b/d.csv", "--label", "y", "--model"]
    for code in ("package:build_model", "zipped.zip:build_model"):
        done = CliRunner().invoke(main, ["render", *given, code], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        # The job gets a copy of the code instead of looking into its image.
        assert "CODE_URI" in done.output, code


@pytest.mark.parametrize("name", ["my-model.py", "class.py"])
def test_a_name_that_cannot_be_imported_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(GOOD)
    with pytest.raises(ConfigurationError, match=name):
        read(tmp_path / name)


def test_missing_code_is_refused(tmp_path: Path) -> None:
    assert "model_code" in str(problem_of(read, tmp_path))
    (tmp_path / "model.py").write_bytes(GOOD)
    misspelt, elsewhere = tmp_path / "modle.py", tmp_path / "nowhere" / "other.py"
    for path, is_named in ((misspelt, True), (elsewhere, False)):
        problem = problem_of(read, path)
        assert "model_code" in str(problem)
        assert (str(tmp_path / "model.py") in problem.fix) is is_named


@pytest.mark.parametrize(
    ("source", "function", "hyperparameters", "problems"),
    [
        (GOOD, "build_model", {"rate": 1}, []),
        (GOOD, "build_model", {"rate": 1, "unit": 2}, ["'unit'"]),
        (GOOD, "build_model", {}, ["'rate'"]),
        (GOOD, "build_modle", {"rate": 1}, ["'build_model'"]),
        (b"def f():\n  pass\n", "f", {}, ["dataset"]),
        pytest.param(b"def f(*, x=" + b"-" * 400 + b"1): 0", "f", {}, ["dataset"], id="nested"),
        (b"def f(d, **rest):\n  pass\n", "f", {"x": 1}, []),
        (b"def f(d)\n  pass\n", "f", {}, ["Python"]),
        (b"from other import f\n", "f", {"x": 1}, []),
        (b"f = 1\n", "g", {}, ["function g"]),
        (b"try:\n  import a\nexcept OSError:\n  def f(d, x): pass\n", "f", {}, []),
        (b"def f(): pass\nif True:\n  def f(d, x=1): pass\n", "f", {}, []),
        (b"def f(): pass\ndef _f(d): pass\nf = _f\n", "f", {}, []),
        pytest.param(b"x = 1" + b"+1" * 1500 + b"\nfrom a import *", "f", {}, [], id="deep"),
        (b"from other import *\n", "f", {}, []),
        (b"@configured\ndef f(d, x): pass\n", "f", {}, []),
        (b"if 1:\n  class C:\n    def f(d): pass\n", "f", {}, ["function f"]),
    ],
)
def test_the_function_is_checked_without_importing(
    source: bytes, function: str, hyperparameters: dict, problems: list[str]
) -> None:
    found = Code("m", {"m.py": source}).problems(function, hyperparameters)
    assert len(found) == len(problems)
    for problem, expected in zip(found, problems, strict=True):
        assert expected in str(problem)


def defined(argument: str) -> Callable[..., Any]:
    """Import a decorated function with an argument; its image alone may have such a function."""
    names: dict[str, Any] = {
        "typing": typing,
        "Any": Any,
        "Literal": typing.Literal,
        "Rate": Decimal,
    }
    exec(f"def f(dataset, {argument}): pass", names)
    return functools.wraps(names["f"])(lambda *given, **named: names["f"](*given, **named))


@pytest.mark.parametrize(
    ("argument", "value", "suggestion"),
    [
        ("x: bool = False", "no", "false"),
        ("x=False", "Yes", "true"),
        ("*, x=True", "None", "null"),
        ("x: 'bool | None' = None", "off", "false"),
        ("x: typing.Optional[float] = None", ".01", "0.01"),
        ("x: int", "64", "64"),
        ("x=-1", "1e-4", "0.0001"),
        ("x: float", "fast", ""),
        ("x: float", "nan", ""),
    ],
)
def test_a_string_for_a_boolean_or_a_number_is_refused(
    argument: str, value: str, suggestion: str
) -> None:
    """The string "no" was true, and built another model."""
    code = Code("m", {"m.py": f"def f(dataset, {argument}): pass\n".encode()})
    imported = defined(argument)
    (problem,), (of_imported,) = (
        code.problems("f", {"x": value}),
        wrong_strings(imported, {"x": value}),
    )
    for it in (problem, of_imported):
        assert (it.path, it.suggestion) == ("model_hyperparameters.x", suggestion)
    if suggestion:
        right = {"x": json.loads(suggestion)}
        assert not code.problems("f", right) and not wrong_strings(imported, right)


@pytest.mark.parametrize(
    "argument",
    ["x", "x=None", "x='a'", "x: str = False", "x: bool | str = False", "x: Rate = 1", "x=(1,)"]
    + ["x: Literal[True, 'auto']", "x: list[int] = ()", "x: Any = 1", "x: 'np.float32' = 1"],
)
def test_a_string_for_an_argument_that_may_take_one_is_passed_on(argument: str) -> None:
    code = Code("m", {"m.py": f"def f(dataset, {argument}): pass\n".encode()})
    assert not code.problems("f", {"x": "no"})
    assert not wrong_strings(defined(argument), {"x": "no"})


def test_an_annotation_that_hurts_is_no_reason_to_fail() -> None:
    source = b"def f(d, x: " + b"-" * 400 + b"1 = 1): pass\n"
    assert not Code("m", {"m.py": source}).problems("f", {"x": "no"})


@pytest.mark.parametrize(
    ("entries", "changes", "why"),
    [
        ([("/etc/x", GOOD)], {}, "outside"),
        ([("a//x.py", GOOD)], {}, "empty"),
        ([("a", GOOD), ("a/b.py", GOOD)], {}, "a/b.py"),
        ([("x" * 300, GOOD)], {}, "255"),
        ([("model.py", GOOD), ("link", b"/etc")], {"external_attr": 0o120777 << 16}, "is a link"),
    ],
)
def test_a_zip_whose_entries_are_no_files_is_refused(
    tmp_path: Path, entries: list, changes: dict, why: str
) -> None:
    with pytest.raises(ConfigurationError, match=why):
        read(packed(tmp_path / "code.zip", *entries, **changes))


@pytest.mark.parametrize("prefix", ["./", ".\\", ""])
@pytest.mark.parametrize("separator", ["/", "\\"])
def test_a_zip_of_another_tool_has_the_same_files(
    tmp_path: Path, prefix: str, separator: str
) -> None:
    """bsdtar begins each entry with ./, and some tools of Windows write backslashes."""
    entries = [(prefix, b"")] if prefix else []
    entries += [(f"{prefix}model.py", GOOD), (f"{prefix}lib{separator}", b"")]
    path = packed(tmp_path / "code.zip", *entries, (f"{prefix}lib{separator}a.py", b"x"))
    assert read(path).files == {"model.py": GOOD, "lib/a.py": b"x"}


def test_a_zip_without_files_has_no_code(tmp_path: Path) -> None:
    problem = problem_of(read, packed(tmp_path / "code.zip", ("lib/", b""), (".hidden", b"x")))
    assert problem.path == "model_code" and "0 files" in problem.received


def test_a_damaged_zip_is_refused(tmp_path: Path) -> None:
    path = packed(tmp_path / "code.zip", ("model.py", GOOD * 50))
    data = path.read_bytes()
    start = 30 + len("model.py")  # of the deflated bytes of the first entry
    path.write_bytes(data[:start] + b"\xff" * 8 + data[start + 8 :])
    with pytest.raises(ConfigurationError, match="zip"):
        read(path)
    encrypted = bytearray(data)
    encrypted[data.rindex(b"PK\1\2") + 8] |= 1
    path.write_bytes(encrypted)
    with pytest.raises(ConfigurationError, match="encrypted"):
        read(path)
    for cut in range(0, len(data), 7):
        path.write_bytes(data[:cut])
        with pytest.raises(ConfigurationError, match="zip"):
            read(path)


def test_a_zip_that_lies_about_its_size_costs_what_is_allowed(tmp_path: Path) -> None:
    path = packed(tmp_path / "code.zip", ("model.py", bytes(400 << 20)))
    data = path.read_bytes()
    for mark, sizes in ((b"PK\3\4", 22), (b"PK\1\2", 24)):  # in the entry and in the index
        at = data.index(mark) + sizes
        data = data[:at] + struct.pack("<I", 100) + data[at + 4 :]
    path.write_bytes(data)
    with bounded(seconds=5, memory=100 << 20):
        with pytest.raises(ConfigurationError):
            read(path)


def test_a_zip_with_too_many_entries_is_refused_before_they_are_read(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(code_files, "MOST_FILES", 20)
    path = packed(tmp_path / "code.zip", *((f"{i}.py", b"") for i in range(21)))
    with pytest.raises(ConfigurationError, match="more than 20 files"):
        read(path)


def test_a_large_folder_is_refused_before_it_is_read(tmp_path, monkeypatch) -> None:
    (tmp_path / "model.py").write_bytes(GOOD)
    with open(tmp_path / "weights.bin", "wb") as file:
        file.truncate(1500 << 20)
    with bounded(seconds=2, memory=20 << 20):
        with pytest.raises(ConfigurationError, match="1,500.0 MiB"):
            read(tmp_path)
        with pytest.raises(ConfigurationError, match="1,500.0 MiB"):
            read(tmp_path / "weights.bin")
    (tmp_path / "weights.bin").unlink()
    monkeypatch.setattr(code_files, "MOST_FILES", 20)
    for i in range(21):
        (tmp_path / f"{i}").touch()
    with pytest.raises(ConfigurationError, match="more than 20 files"):
        read(tmp_path)


def test_links_are_followed_inside_of_the_folder_only(tmp_path, caplog) -> None:
    folder, secret = tmp_path / "code", tmp_path / "secret"
    folder.mkdir()
    secret.write_bytes(b"key")
    (folder / "model.py").write_bytes(GOOD)
    (folder / "same.py").symlink_to("model.py")
    (folder / "around").symlink_to(folder)
    (folder / "itself.py").symlink_to(folder / "itself.py")
    assert read(folder) == Code("model", {"model.py": GOOD, "same.py": GOOD})
    assert "a link" in caplog.text
    (folder / "key").symlink_to(secret)
    with pytest.raises(ConfigurationError, match="secret"):
        read(folder)


@pytest.mark.parametrize(
    "source",
    [
        *(b"-" * 100_000 + b"1", b"a" + b".b" * 100_000, b"(" * 5000, b"\0"),
        *(b"# coding: nothing\n", b"# coding: rot13\n"),
        pytest.param(
            b"x = 1\n" * 100_000 + "".join(map(chr, range(0x2460, 0x249C))).encode(), id="many"
        ),
    ],
)
def test_code_that_hurts_the_parser_is_a_problem(source: bytes) -> None:
    with bounded(seconds=5, memory=300 << 20):
        (problem,) = Code("m", {"m.py": source}).problems("f", {})
    assert problem.what


PROGRAMS = Path(__file__).parents[1] / "data" / "programs"
NBSP, SPACE = "\u00a0", " "


@pytest.mark.parametrize(
    ("text", "received"),
    [
        ("x = 1\n\u00a0 y = 2\n", ["line 2: U+00A0"]),
        ("# \u00a0 is fine\n\u3000x = 1\n", ["line 2: U+3000"]),
        ("print(\u201chi\u201d)\nx = 1 \u2013 2\n", ["1: U+201C", "1: U+201D", "2: U+2013"]),
        ("print(\u2018it\u2019)\n", ["1: U+2018", "1: U+2019"]),
        ("mo\u200bdel = 1\nx =\ufeff 2\n", ["1: U+200B", "2: U+FEFF"]),
        ("print\uff081\uff09\n", ["1: U+FF08", "1: U+FF09"]),
        ("x = 5 \u20ac\n", ["line 1: U+20AC"]),
    ],
)
def test_a_character_that_is_not_code_is_named_with_its_line(
    text: str, received: list[str]
) -> None:
    """Web pages and word processors insert them, and an editor does not show them."""
    problem = problem_of(parse, "train.py", text.encode())
    assert problem.what.startswith("train.py") and isinstance(problem, SyntaxProblem)
    parts = str(problem.received).split("; ")
    assert len(parts) == len(received)
    assert all(wanted in part for wanted, part in zip(received, parts, strict=True))
    assert all(part.partition("U+")[2][:4] in problem.fix for part in parts)


def test_the_remedy_of_a_program_from_a_web_page_makes_it_the_program() -> None:
    copied = (PROGRAMS / "tutorial_from_a_web_page.txt").read_text()
    problem = problem_of(parse, "tutorial.py", copied.encode())
    assert "line 2: U+00A0" in str(problem.received)
    assert "U+00A0 with a space" in problem.fix
    program = (PROGRAMS / "tutorial.py").read_bytes()
    assert copied.replace(NBSP, SPACE).encode() == program
    parse("tutorial.py", program)  # with its dashes, quotes and letters in comments


@pytest.mark.parametrize(
    ("data", "line"),
    [
        ("x = 1\ny = '\u00a0'\n".encode("cp1252"), "line 2"),
        (b"x = 1\n" * 9 + b"# \xe9\n", "line 10"),
        ("x = 1\n".encode("utf-16"), "line 1"),
    ],
)
def test_a_file_in_another_encoding_is_named_with_its_line(data: bytes, line: str) -> None:
    problem = problem_of(parse, "m.py", data, is_script=True)
    assert line in str(problem.received) and "UTF-8" in problem.fix
    parse("m.py", b"# coding: cp1252\nx = '\xa0'\n", is_script=True)
    parse("m.py", b"x = 1\n# \xe9\n")  # Python imports it, but does not run it


@pytest.mark.parametrize(
    ("command", "files"),
    [
        (["python3", "$(JOB_DIR)/code/train.py"], ["train.py"]),
        (["sh", "-c", 'cd "$JOB_DIR/code" && exec python3 ./train.py --x=1'], ["train.py"]),
        (["torchrun", "--nproc", "1", "$(JOB_DIR)/code/a/main.py", "b.py"], ["a/main.py", "b.py"]),
        (["sh", "-c", "cd $(JOB_DIR)/code; python3 -m a"], ["a/__init__.py", "a/__main__.py"]),
        (["sh", "-c", "cd $(JOB_DIR)/code; python3 -m a.main"], ["a/main.py"]),
        (["python3", "/srv/train.py"], []),
        (["python3", "-c", "import train"], []),
        (["bash", "$(JOB_DIR)/code/run.sh"], []),
    ],
)
def test_the_files_of_a_command_are_those_of_the_copy(command: list[str], files: list[str]) -> None:
    names = ("train.py", "b.py", "a/__init__.py", "a/__main__.py", "a/main.py", "run.sh")
    assert named_files(command, dict.fromkeys(names, b"")) == files


def test_what_a_program_imports_is_parsed_unless_it_may_be_absent() -> None:
    wrong = b"x = (\n"
    files = {
        "train.py": b"import helpers, numpy\nfrom package import a\nfrom loose import *\n"
        b"try:\n  import maybe\nexcept ImportError:\n  pass\n"
        b"def f():\n  import later\n",
        "helpers.py": wrong,
        "package/__init__.py": b"from . import b\n",
        "package/a.py": b"from .deep.c import d\nfrom ...above import e\nimport helpers\n",
        "package/b.py": wrong,
        "package/deep/c.py": wrong,
        **dict.fromkeys(("maybe.py", "later.py", "other.py", "package/helpers.py"), wrong),
    }
    found = [it.what.split()[0] for it in Code("train", files).problems_of_command(["train.py"])]
    assert sorted(found) == ["helpers.py", "package/b.py", "package/deep/c.py"]
    # A model's module is imported with the folder of the code first on the path.
    own = {"m/__init__.py": b"import helpers\nfrom .layers import f\n", "m/layers.py": wrong}
    own |= {"m/helpers.py": wrong, "helpers.py": b""}
    assert [it.what for it in Code("m", own).problems("f", {})] == ["m/layers.py is not Python"]


def test_what_an_evaluator_or_a_reader_imports_is_parsed(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("import helpers\ndef f(dataset, predictions): return {}\n")
    (tmp_path / "helpers.py").write_text("x = (\n")
    for kind in (EvaluatorCode, OwnReader):
        problem = problem_of(kind.read, f"{tmp_path}:f", None)
        assert (problem.what, problem.path) == ("helpers.py is not Python", kind.path)


@pytest.mark.parametrize("command", [(), ("python3", "$(JOB_DIR)/code/train.py")])
@pytest.mark.parametrize(
    ("image", "backend", "status"),
    [
        (TRAIN, "kubernetes", Status.PROBLEM),
        ("own:1", "kubernetes", Status.WARNING),  # its Python may be newer
        ("own:1", "local", Status.PROBLEM),  # this Python runs it
    ],
)
def test_what_this_python_cannot_parse_is_wrong_where_it_runs(
    tmp_path: Path, monkeypatch, command: tuple[str, ...], image: str, backend: str, status: Status
) -> None:
    monkeypatch.setenv(BACKEND_VARIABLE, backend)
    (tmp_path / "train.py").write_text(f"def f(d):\n{NBSP}   return d\n")
    values = defaults() | {"model_code": f"{tmp_path}/train.py:f", "train_image": image}
    values |= {"train_options": {"command": command}} if command else {}
    step = Step("preflight", "r", Layout(S3Address("bucket")), STORE)
    code, (finding,) = check_code(step, ModelCode.of_run(values), image, command, {})
    assert code.files and finding.status == status
    assert "line 2: U+00A0" in str(finding.received)
    # `submit` says the same before it copies the code.
    found = check_code_here(completed(values), ["compiled:1", TRAIN])
    assert len(found) == (image == TRAIN)


def test_submit_needs_no_function_in_a_program(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_bytes((PROGRAMS / "tutorial.py").read_bytes())
    values = defaults() | {"model_code": f"{tmp_path}/train.py:main"}
    assert len(check_code_here(completed(values), [])) == 1
    values |= {"train_options": {"command": ["python3", "$(JOB_DIR)/code/train.py"]}}
    assert check_code_here(completed(values), []) == []
    # What is no dict is another problem.
    for name in ("train_options", "data_options", "gate"):
        assert len(check_code_here(completed(values, {name: [1]}), [])) == (name == "train_options")


def test_a_zip_of_a_folder_is_read_as_the_folder(tmp_path: Path) -> None:
    for folder, file, module, kept in (
        ("own", "__init__.py", "own", "own/a.py"),
        ("my folder", "model.py", "model", "a.py"),
    ):
        path = packed(tmp_path / "x.zip", (f"{folder}/{file}", GOOD), (f"{folder}/a.py", b""))
        code = ModelCode.parse(f"{path}:build_model").read(STORE)
        assert code.module == module and kept in code.files


def test_model_code_in_a_folder_uses_its_own_package(tmp_path, repository, monkeypatch) -> None:
    """As preflight reads the folder, setup unpacks it and the trainer imports it."""
    from kfp_tfjob.trainer.user_model import find

    given, unpacked = tmp_path / "given", tmp_path / "unpacked"
    (given / "components").mkdir(parents=True)
    (given / "components" / "__init__.py").touch()
    (given / "components" / "layers.py").write_text("UNITS = 8\n")
    (given / "model.py").write_text(
        "from components import layers\n"
        "from kfp_tfjob.components.step import Step\n"
        "def build_model(dataset):\n"
        "    return layers.UNITS, layers.__file__, Step.__module__\n"
    )
    code = read(given)
    assert code.module == "model" and not code.problems("build_model", {})
    for name, data in code.files.items():
        (unpacked / name).parent.mkdir(parents=True, exist_ok=True)
        (unpacked / name).write_bytes(data)
    monkeypatch.setattr(sys, "path", [str(repository), *sys.path])  # has our own of this name
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    own = str(unpacked / "components" / "layers.py")
    assert find("model:build_model", unpacked)(None) == (8, own, "kfp_tfjob.components.step")


@pytest.fixture
def beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a file of code, which is written as `net.py`, and modules beside it."""
    folder = tmp_path / "sib"
    for name in ("layers2.py", "blocks/base.py", "data/rows.csv", "random.py", "keras.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("UNITS = 8\n")
    monkeypatch.chdir(folder)
    return folder


def of_net(text: str, source: str = "net.py", function: str = "build") -> list:
    Path("net.py").write_text(text)
    return ModelCode(source, function).read(None).problems(function, {})


BUILD = "\ndef build(dataset):\n    {}\n    return 1\n"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("from layers2 import UNITS" + BUILD.format("pass"), ["layers2"]),
        ("import blocks.base, layers2" + BUILD.format("pass"), ["blocks", "layers2"]),
        (BUILD.format("from layers2 import UNITS"), ["layers2"]),
        ("try:\n  import layers2\nexcept ImportError:\n  pass" + BUILD.format(""), ["layers2"]),
        ("def own():\n  import layers2\n\ndef more(): own()" + BUILD.format("more()"), ["layers2"]),
        ("def callbacks(dataset):\n    import layers2" + BUILD.format("pass"), ["layers2"]),
        ("def own(f):\n  import layers2\n@own\ndef more(): pass" + BUILD.format(""), ["layers2"]),
        ("class Net:\n  def call(self):\n    import layers2" + BUILD.format("Net()"), ["layers2"]),
    ],
)
def test_a_module_beside_a_file_is_refused_with_the_folder_that_has_both(
    beside: Path, text: str, names: list[str]
) -> None:
    """The file alone is copied: training failed after minutes, and no digest had the module."""
    (problem,) = of_net(text)
    assert (problem.path, problem.suggestion) == ("model_code", ".:build")
    assert all(name in problem.what for name in names)
    code = ModelCode.parse(problem.suggestion)
    found = code.read(None)
    assert found.module == "net" and not found.problems("build", {})
    assert {"net.py", "layers2.py", "blocks/base.py"} <= found.files.keys()


@pytest.mark.parametrize(
    "text",
    [
        "import random, keras.layers, data.rows, tensorflow as tf, not_here" + BUILD.format("pass"),
        "if __name__ == '__main__':\n    import layers2" + BUILD.format("pass"),
        "import typing\nif typing.TYPE_CHECKING:\n    import layers2" + BUILD.format("pass"),
        "def main():\n    import layers2" + BUILD.format("pass"),
        "def main():\n    import layers2\n"
        + BUILD.format("pass")
        + "if __name__ == '':\n  main()\n",
    ],
)
def test_an_import_of_no_module_beside_the_code_is_left_to_the_image(
    beside: Path, text: str
) -> None:
    assert not of_net(text)


def test_a_folder_has_only_what_is_in_it(beside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(beside.parent)
    (beside.parent / "outside.py").touch()
    (beside / "net.py").write_text("import outside, layers2" + BUILD.format("pass"))
    (problem,) = ModelCode("./sib", "build").read(None).problems("build", {})
    assert "outside" in problem.what and "layers2" not in problem.received
    assert not problem.suggestion  # the folder above has no module for it
    (beside.parent / "outside.py").rename(beside / "outside.py")
    assert not ModelCode("./sib", "build").read(None).problems("build", {})


def test_without_a_folder_that_works_the_remedy_makes_one(beside: Path) -> None:
    Path("mut.py").write_text("def build(dataset): pass\n")  # so `.` names no module
    (problem,) = of_net("import layers2" + BUILD.format("pass"))
    assert not problem.suggestion and "model.py" in problem.fix
    own = beside / "own"
    own.mkdir()
    (beside / "net.py").rename(own / "model.py")
    (beside / "layers2.py").rename(own / "layers2.py")
    code = ModelCode.parse("./own:build").read(None)
    assert code.module == "model" and not code.problems("build", {})


def test_code_in_the_store_is_looked_at_beside_it(store: Store, base: S3Address) -> None:
    store.write(base / "net.py", ("import layers2" + BUILD.format("pass")).encode())
    code = ModelCode(f"{base}/net.py", "build")
    assert not code.read(store).problems("build", {})
    store.write(base / "layers2.py", b"")
    (problem,) = code.read(store).problems("build", {})
    assert problem.suggestion == f"{base}:build"
    found = ModelCode.parse(problem.suggestion).read(store)
    assert found.module == "net" and not found.problems("build", {})


@pytest.mark.parametrize(
    ("text", "is_wrong"),
    [
        ("from .layers2 import UNITS", True),
        ("from . import layers2", True),
        ("try:\n  from .layers2 import UNITS\nexcept ImportError:\n  UNITS = 1", False),
    ],
)
def test_a_relative_import_needs_a_package(beside: Path, text: str, is_wrong: bool) -> None:
    assert bool(of_net(text + BUILD.format("pass"))) is is_wrong
    assert bool(of_net(text + BUILD.format("pass"), ".")) is is_wrong
    Path("__init__.py").write_text("from .net import build")
    assert not of_net(text + BUILD.format("pass"), str(beside))


@pytest.mark.parametrize(
    ("name", "is_taken"),
    [("code", True), ("keras", True), ("random", True), ("test", False), ("net", False)],
)
def test_code_with_the_name_of_a_loaded_module_is_refused(
    tmp_path: Path, name: str, is_taken: bool
) -> None:
    """`code.py` was Python's own when training started."""
    for path in (tmp_path / f"{name}.py", tmp_path / name / "__init__.py"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(BUILD.format("pass"))
        for at in (path, path.parent) if path.parent != tmp_path else (path,):
            if at.name != "__init__.py":
                found = ModelCode(str(at), "build").read(None).problems("build", {})
                assert bool(found) is is_taken
                file = f"{name}.py" if at.suffix else f"{name}/__init__.py"
                command = ["python3", f"$(JOB_DIR)/code/{file}"]
                assert not ModelCode(str(at), "main").read(None).problems_of_command(command)


def test_the_trainer_refuses_the_name_of_any_library_that_it_has_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import psutil

    from kfp_tfjob.trainer.user_model import find

    (tmp_path / "psutil.py").write_text(BUILD.format("pass"))
    monkeypatch.setattr(sys, "path", [*sys.path])
    problem = problem_of(find, "psutil:build", tmp_path)
    assert problem.received == psutil.__file__
    (tmp_path / "psutil.py").rename(tmp_path / "my_psutil.py")
    assert find("my_psutil:build", tmp_path)(None) == 1


def test_a_program_has_only_what_is_copied_with_it(beside: Path) -> None:
    command = ["python3", "$(JOB_DIR)/code/train.py"]
    Path("train.py").write_text("def main():\n  pass\nif __name__ == '__main__':\n  import layers2")
    (problem,) = ModelCode("train.py", "main").read(None).problems_of_command(command)
    assert problem.suggestion == ".:main"
    Path("train.py").write_text("def main():\n  import layers2\nif __name__ == 'a':\n  main()")
    (problem,) = ModelCode("train.py", "main").read(None).problems_of_command(command)
    assert problem.suggestion == ".:main" and "line 2" in problem.received
    assert not ModelCode.parse(problem.suggestion).read(None).problems_of_command(command)


def test_another_image_may_contain_what_lies_beside_the_code(beside: Path, tmp_path: Path) -> None:
    Path("net.py").write_text("import layers2" + BUILD.format("pass"))
    step = Step("preflight", "r", Layout(S3Address("test")), STORE)
    for image, status in ((TRAIN, Status.PROBLEM), ("own:1", Status.WARNING)):
        _, (finding,) = check_code(step, ModelCode("net.py", "build"), image, (), {})
        assert finding.status == status
