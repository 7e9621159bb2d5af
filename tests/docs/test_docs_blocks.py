"""Every command of the documents exists, with the options that it is shown with."""

import ast
import inspect
import json
import re
from copy import copy
from pathlib import Path
from urllib.parse import urlsplit

import click
import pytest
import yaml

from kfp_tfjob.options.pipeline import PARAMETERS
from kfp_tfjob.options.pod import PodOptions
from kfp_tfjob.pipelines.cli import main
from kfp_tfjob.pipelines.explanation import explain
from tests.docs.blocks import DOCUMENTS, ROOT, TAGS, Block, all_blocks

BLOCKS = all_blocks()
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
            case ["curl", *arguments]:
                request(arguments)


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
    context = main.make_context("kfp-tfjob", list(arguments), resilient_parsing=False)
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


def apis() -> dict[tuple[str, str], str]:
    """Return the name of the method of KFP's API for each request."""
    import kfp_server_api

    found = {}
    for name, kind in vars(kfp_server_api).items():
        if name.endswith("Api") and inspect.isclass(kind):
            for method, function in inspect.getmembers(kind, inspect.isfunction):
                if method.endswith("_with_http_info"):
                    source = inspect.getsource(function)
                    path, verb = re.search(r"'(/apis/[^']+)', '([A-Z]+)'", source).groups()
                    found[verb, re.sub(r"\{[^}]*\}", "{}", path)] = source
    return found


def request(arguments: list[str]) -> None:
    """Compare a request of curl with KFP's API: its path, its method, and the model of its body.

    A request to a server of a model has the keys of V1 or V2.
    """
    import kfp_server_api

    verb, body, url = "", "", ""
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if word in ("-X", "--request"):
            verb = rest.pop(0)
        elif word in ("-d", "--data", "--json"):
            body = rest.pop(0)
        elif word in ("-H", "--header", "-F", "--form", "-o", "--output"):
            rest.pop(0)
        elif not word.startswith("-"):
            url = word
    if re.search(r"/v1/models/\w+:predict$", url):
        assert json.loads(body)["instances"]  # of a model server
        return
    verb = verb or ("POST" if body else "GET")
    if served := re.search(r"(/v[12]/models/[\w.$-]+)(:predict|/infer|/ready)?$", url):
        # tests/serve sends such requests to the server itself.
        key = {":predict": "instances", "/infer": "inputs"}.get(served[2])
        assert verb == ("POST" if key else "GET"), f"{verb} {url}"
        assert not key or isinstance(json.loads(body)[key], list), f"{url} has no {key}"
        return
    path = "/apis" + url.replace("$API/", "/apis/v2beta1/").partition("/apis")[2]
    path = urlsplit(path).path
    if path == "/apis/v2beta1/pipelines/upload":
        return  # the service for uploads has no generated model
    known = apis()
    like = re.sub(r"\$\w+|\$\{\w+\}", "{}", path)
    assert (verb, like) in known, f"{verb} {path} is not in KFP's API"
    query = {pair.partition("=")[0] for pair in urlsplit(url).query.split("&") if pair}
    for name in query:
        assert f"'{name}'" in known[verb, like], f"{path} has no parameter {name}"
    if body:
        model = re.search(r":param (V2beta1\w+) \w+", known[verb, like])
        model = model or re.search(r":type \w+: (V2beta1\w+)", known[verb, like])
        assert model, f"{verb} {path} has no body"
        validate(json.loads(body), model[1], kfp_server_api)


def validate(value: object, kind: str, models: object) -> None:
    """Compare JSON with a model of KFP's API: every key is one of its fields."""
    if listed := re.fullmatch(r"list\[(.*)\]", kind):
        for item in value:
            validate(item, listed[1], models)
        return
    model = getattr(models, kind, None)
    if model is None or not hasattr(model, "openapi_types"):
        return
    if not isinstance(value, dict):
        assert value in getattr(model, "allowable_values", [value]), f"{value!r} is not a {kind}"
        return
    names = {name: field for field, name in model.attribute_map.items()}
    for name, item in value.items():
        assert name in names, f"{kind} has no {name!r}; it has {sorted(names)}"
        validate(item, model.openapi_types[names[name]], models)


@pytest.mark.parametrize("block", blocks("python"))
def test_python_parses(block: Block) -> None:
    ast.parse(block.text)


@pytest.mark.parametrize("block", blocks("yaml", "json"))
def test_data_parses(block: Block) -> None:
    list(yaml.safe_load_all(block.text)) if block.language == "yaml" else json.loads(block.text)


def test_files_that_the_documents_name_exist() -> None:
    folders = sorted(path.name for path in ROOT.iterdir() if path.is_dir() and path.name[0] != ".")
    named = re.compile(rf"`((?:{'|'.join(folders)})/[\w./-]*)`")
    documents = [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    missing = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in documents
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
    steps = ("prepare", "evaluate")
    fields = {step: PodOptions.model_fields[step].annotation.model_fields for step in steps}
    known |= {f"pod.{step}.{key}" for step, keys in fields.items() for key in keys}
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
    return Path(name).suffix == "" or name == "images/references.json"
