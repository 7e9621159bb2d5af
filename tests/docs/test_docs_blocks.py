"""Every command of the documents exists, with the options that it is shown with."""

import ast
import json
import os
import re
import shlex
import subprocess
from copy import copy
from pathlib import Path

import click
import pytest
import yaml

from kfp_tfjob.options.parameters import PARAMETERS
from kfp_tfjob.options.pod import PodOptions
from kfp_tfjob.pipelines.cli import main
from kfp_tfjob.pipelines.compilation import FOLDER
from kfp_tfjob.pipelines.parameter_help import explain
from tests.docs.blocks import DOCUMENTS, ROOT, TAGS, Block, blocks_of, script
from tests.local.fake_pipelines import FakePipelines

BLOCKS = [block for path in DOCUMENTS for block in blocks_of(path)]
LANGUAGES = {"sh", "text", "python", "yaml", "json", "html", "promql"}


def blocks(*languages: str) -> list:
    return [pytest.param(it, id=str(it)) for it in BLOCKS if it.language in languages]


def test_every_block_names_its_language_and_every_command_where_it_runs() -> None:
    for block in BLOCKS:
        assert block.language in LANGUAGES, f"{block}: write the language after the fence"
        tags = [name for name in block.classes if name in TAGS]
        assert len(tags) == (block.language == "sh" or bool(block.classes)), (
            f"{block}: one of {TAGS}"
        )
        assert set(block.classes) <= {*TAGS, "slow"}


@pytest.mark.parametrize("block", blocks("sh"))
def test_commands(block: Block) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for words in block.commands():
        while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
            words = words[1:]
        match words:
            case ["kfp-tfjob", *arguments]:
                parse(arguments)
            case ["make", *arguments]:
                names = {it for it in arguments if "=" not in it}
                assert names <= targets, f"{block}: {names - targets}"
            case ["curl", *_, "-d", body] if not body.startswith("@"):
                json.loads(body)


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*/*.yaml")), ids=str)
def test_commands_of_an_example(path: Path) -> None:
    commands = re.findall(r"kfp-tfjob ([a-z][^|\n]*)", path.read_text())
    assert commands
    for it in commands:
        parse(shlex.split(it))


def test_both_commands_stand_on_the_first_screen_of_the_readme() -> None:
    shown = [it for it in BLOCKS if it.path == ROOT / "README.md" and it.line <= 40]
    lines = [line for it in shown if it.language == "sh" for line in it.text.splitlines()]
    for target in ("run", "test"):
        (line,) = [it for it in lines if it.split("#")[0].split() == ["make", target]]
        assert re.search(r"\d+ minutes", line)
    first_screen = "\n".join((ROOT / "README.md").read_text().splitlines()[:20])
    assert re.search(r"installs .*\b[\d.]+ GB", first_screen)


def parse(arguments: list[str]) -> None:
    """Parse a command line as the program does, without running it."""
    try:
        context = main.make_context("kfp-tfjob", list(arguments), resilient_parsing=False)
    except click.exceptions.Exit:  # --version
        return
    while isinstance(context.command, click.Group):
        rest = [*context._protected_args, *context.args]
        if not rest and context.command.invoke_without_command:
            return
        name, command, rest = context.command.resolve_command(context, rest)
        command = copy(command)
        command.params = [_of_an_example(it) for it in command.params]
        try:
            context = command.make_context(name, rest, parent=context)
        except click.exceptions.Exit:  # --help
            return


def _of_an_example(parameter: click.Parameter) -> click.Parameter:
    """Return a copy that takes files which are not there; other tests use the parameter itself."""
    found = copy(parameter)
    if isinstance(parameter.type, click.File):
        found.type = click.STRING
    elif isinstance(parameter.type, click.Path):
        found.type = copy(parameter.type)
        found.type.exists = False
    return found


def test_the_requests_of_a_page_are_those_of_the_api(tmp_path: Path) -> None:
    """The fake refuses what kfp_server_api's models do not have."""
    commands = [it for it in BLOCKS if it.path.name == "rest.md" and it.language == "sh"]
    (tmp_path / "compiled").symlink_to(FOLDER)
    with FakePipelines() as fake:

        def end_before_a_retry(_: str, path: str) -> None:
            if path.endswith(":retry"):
                for run in fake.runs.values():
                    run.state = "FAILED"

        fake.broken = end_before_a_retry
        done = subprocess.run(
            ["bash", "-c", script(commands)],
            cwd=tmp_path,
            env=os.environ | {"KF_PIPELINES_ENDPOINT": fake.host, "BUCKET": "bucket"},
            capture_output=True,
            text=True,
        )
    assert done.returncode == 0, done.stderr
    assert sum(method in ("POST", "DELETE") for method, _ in fake.requests) == 7


@pytest.mark.parametrize("block", blocks("python"))
def test_python_parses(block: Block) -> None:
    ast.parse(block.text)


@pytest.mark.parametrize("block", blocks("yaml", "json"))
def test_data_parses(block: Block) -> None:
    list(yaml.safe_load_all(block.text)) if block.language == "yaml" else json.loads(block.text)


def test_files_that_the_documents_name_exist() -> None:
    folders = sorted(path.name for path in ROOT.iterdir() if path.is_dir() and path.name[0] != ".")
    named = re.compile(rf"`((?:{'|'.join(folders)})/[\w./-]*)`")
    missing = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in DOCUMENTS
        for name in named.findall(path.read_text())
        if not (ROOT / name).exists() and not _of_a_run(name)
    ]
    assert not missing


def test_keys_that_the_documents_name_exist() -> None:
    known = {"pod.evaluator.replicas", "pod.evaluator.gpus"}
    for name, parameter in PARAMETERS.items():
        for path in explain(name, parameter.group) if parameter.group else ():
            parts = path.split(".")
            known |= {".".join(parts[:length]) for length in range(2, len(parts) + 1)}
    known |= {
        path.replace("pod.all.", f"pod.{role}.")
        for path in known
        for role in ("chief", "worker", "ps", "evaluator")
    }
    pods = ("chief", "worker", "ps", "evaluator", "prepare", "evaluate")
    fields = {pod: PodOptions.model_fields[pod].annotation.model_fields for pod in pods}
    known |= {f"pod.{pod}.{key}" for pod, keys in fields.items() for key in keys}
    named = re.compile(r"`((?:train_options|data_options|gate|pod)(?:\.[a-z_]+)+)")
    wrong = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in DOCUMENTS
        for name in named.findall(path.read_text())
        if name not in known and not name.endswith(".py")
    ]
    assert not wrong


def _of_a_run(name: str) -> bool:
    """Tell whether a name is made by a command, or belongs to the output of a run."""
    return Path(name).suffix == "" or name == "images/digests.json"
