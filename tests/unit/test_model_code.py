"""model_code: the forms it may have, and what is wrong with code before it is ever imported."""

import io
import zipfile
from pathlib import Path

import pytest

from components.preflight.model_code import Code, ModelCode, as_path
from storage.errors import ConfigurationError
from storage.store import Store

GOOD = b"def build_model(dataset, units=8, *, rate):\n    return dataset\n"


@pytest.mark.parametrize(
    ("text", "source", "function", "in_image"),
    [
        ("trainer.models:mlp", "trainer.models", "mlp", True),
        ("model.py:build", "model.py", "build", False),
        ("./my_model:build", "./my_model", "build", False),
        ("folder/code.zip:build", "folder/code.zip", "build", False),
        ("code.zip:build", "code.zip", "build", False),
        ("folder/:build", "./folder", "build", False),
        ("/srv/folder/:build", "/srv/folder", "build", False),
        ("./:build", "./.", "build", False),
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
    ["", "model.py", "./model.py:", "/:build", ":build", "trainer.models:", "s3://b/m.py", "a:1b"],
)
def test_what_names_no_function_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="does not name a function"):
        ModelCode.parse(text)


def read(path: Path, function: str = "build_model") -> Code:
    return ModelCode(str(path), function).read(Store("http://127.0.0.1:1"))


def test_a_file_a_package_a_loose_folder_and_a_zip_are_importable(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_bytes(GOOD)
    assert read(file) == Code("mine", {"mine.py": GOOD})

    package = tmp_path / "package"
    (package / "__pycache__").mkdir(parents=True)
    (package / "__pycache__" / "x.pyc").write_bytes(b"")
    (package / "__init__.py").write_bytes(GOOD)
    assert read(package) == Code("package", {"package/__init__.py": GOOD})

    loose = tmp_path / "loose"
    loose.mkdir()
    (loose / "model.py").write_bytes(GOOD)
    assert read(loose) == Code("model", {"model.py": GOOD})

    packed = tmp_path / "package.zip"
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("package/__init__.py", GOOD)
    assert read(packed) == Code("package", {"package/__init__.py": GOOD})


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a person with code in every form, called like modules."""
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_bytes(GOOD)
    (tmp_path / "own.py").write_bytes(GOOD)
    with zipfile.ZipFile(tmp_path / "zipped.zip", "w") as archive:
        archive.writestr("zipped/__init__.py", GOOD)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("given", "module"),
    [
        ("zipped.zip", "zipped"),
        ("./zipped.zip", "zipped"),
        ("package", "package"),
        ("package/", "package"),
        ("./package", "package"),
        ("HERE/package/", "package"),
        ("own", "own"),
        ("own.py", "own"),
        ("./own.py", "own"),
        ("HERE/own.py", "own"),
    ],
)
def test_code_in_the_folder_one_stands_in_is_taken_from_there(
    here: Path, given: str, module: str
) -> None:
    text = as_path(f"{given.replace('HERE', str(here))}:build_model")
    code = ModelCode.parse(text)
    assert not code.in_image and code.module == module
    found = code.read(Store("http://127.0.0.1:1"))
    assert found.module == module and not found.problems("build_model", {"rate": 1})


def test_a_folder_one_stands_in_is_code(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(here / "package")
    for given in (".", "./"):
        code = ModelCode.parse(as_path(f"{given}:build_model"))
        assert code.read(Store("http://127.0.0.1:1")).module == code.module == "package"


def test_what_is_not_here_stays_what_it_was(here: Path) -> None:
    for text in ("trainer.models:mlp", "other:f", "package", "package:", "s3://b/package:f", ""):
        assert as_path(text) == text
    with pytest.raises(ConfigurationError, match="does not exist.*did you mean 'zipped.zip'"):
        ModelCode.parse("ziped.zip:f").read(Store("http://127.0.0.1:1"))


def test_the_command_line_takes_a_folder_here_for_one(here: Path) -> None:
    from click.testing import CliRunner

    from pipelines.cli import main

    given = ["--data", "s3://b/d.csv", "--label", "y", "--model"]
    for code in ("package:build_model", "zipped.zip:build_model"):
        done = CliRunner().invoke(main, ["render", *given, code], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        # The job gets a copy of the code instead of looking into its image.
        assert "CODE_URI" in done.output, code


def test_a_zip_that_leaves_its_folder_is_refused(tmp_path: Path) -> None:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr("../model.py", GOOD)
    path = tmp_path / "code.zip"
    path.write_bytes(data.getvalue())
    with pytest.raises(ConfigurationError, match="written outside its folder"):
        read(path)


@pytest.mark.parametrize("name", ["my-model.py", "class.py"])
def test_a_name_that_cannot_be_imported_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(GOOD)
    with pytest.raises(ConfigurationError, match="cannot be imported under its name"):
        read(tmp_path / name)


def test_missing_code_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="model_code names no code"):
        read(tmp_path)
    (tmp_path / "model.py").write_bytes(GOOD)
    with pytest.raises(
        ConfigurationError, match="in model_code does not exist.*did you mean '.*model.py'"
    ):
        read(tmp_path / "modle.py")
    with pytest.raises(ConfigurationError, match="in model_code does not exist.*correct the path"):
        read(tmp_path / "nowhere" / "other.py")


@pytest.mark.parametrize(
    ("source", "function", "hyperparameters", "problems"),
    [
        (GOOD, "build_model", {"rate": 1}, []),
        (GOOD, "build_model", {"rate": 1, "unit": 2}, ["does not take the hyperparameter 'unit'"]),
        (GOOD, "build_model", {}, ["needs the hyperparameter 'rate'"]),
        (GOOD, "build_modle", {"rate": 1}, ["did you mean 'build_model'"]),
        (b"def f():\n  pass\n", "f", {}, ["does not take the dataset"]),
        (b"def f(d, **rest):\n  pass\n", "f", {"x": 1}, []),
        (b"def f(d)\n  pass\n", "f", {}, ["is not Python"]),
        (b"from other import f\n", "f", {"x": 1}, []),
        (b"f = 1\n", "g", {}, ["has no function g"]),
    ],
)
def test_the_function_is_checked_without_importing(
    source: bytes, function: str, hyperparameters: dict, problems: list[str]
) -> None:
    found = Code("m", {"m.py": source}).problems(function, hyperparameters)
    assert len(found) == len(problems)
    for problem, expected in zip(found, problems, strict=True):
        assert expected in str(problem)
