"""The parts of the documents that follow declarations: parameters, verdicts, steps, commands."""

import copy
import inspect
import json
import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from textwrap import fill
from typing import Any

import click
import docstring_parser
import yaml

from kfp_tfjob import storage
from kfp_tfjob.common.escaping import row
from kfp_tfjob.components import STEPS
from kfp_tfjob.components.preflight.parameters import defaults
from kfp_tfjob.jobs.verdict import Judgement, Verdict
from kfp_tfjob.options import audience
from kfp_tfjob.options.parameters import PARAMETERS
from kfp_tfjob.options.train import TrainerOptions
from kfp_tfjob.pipelines.cli import main
from kfp_tfjob.pipelines.compilation import FOLDER as COMPILED
from kfp_tfjob.pipelines.kubeflow.client import Client
from kfp_tfjob.pipelines.parameter_help import explain
from kfp_tfjob.pipelines.tfjob_training import STEPS as PIPELINE_STEPS
from kfp_tfjob.storage.store_settings import VARIABLES
from kfp_tfjob.supervisor import exit_codes
from kfp_tfjob.supervisor.environment import VARIABLES as VARIABLES_OF_A_REPLICA

# The words of Python for the types of compiled YAML.
_TYPES = {
    "STRING": "str",
    "NUMBER_INTEGER": "int",
    "NUMBER_DOUBLE": "float",
    "BOOLEAN": "bool",
    "STRUCT": "dict",
    "LIST": "list",
}


def _table(titles: str, rows: Iterable[str]) -> str:
    """Return a table; the titles of its columns are divided by `|`."""
    return "\n".join([f"| {titles} |", "|---" * (titles.count("|") + 1) + "|", *rows])


def parameters() -> str:
    rows = []
    for name, parameter in PARAMETERS.items():
        value = defaults()[name]
        text = json.dumps(value) if isinstance(value, dict) else str(value)
        shown = "**required**" if parameter.is_required else f"`{text}`" if text else ""
        rows.append(f"| `{name}` | {shown} | {parameter.sentence} |")
    return _table("parameter | default | meaning", rows)


def keys(name: str) -> str:
    meanings = explain(name, PARAMETERS[name].group)
    return _table(
        "key | meaning | who sets it, and why",
        (
            row(f"`{path.partition('.')[2]}`", meaning, audience.KEYS[path])
            for path, meaning in meanings.items()
        ),
    )


def environment() -> str:
    names = ", ".join(f"`{name}`" for name in TrainerOptions.model_fields)
    meanings = VARIABLES_OF_A_REPLICA | {"TRAIN_OPTIONS": f"JSON object: {names}"}
    rows = (row(f"`{name}`", meaning) for name, meaning in meanings.items())
    return _table("variable | meaning", rows)


def verdicts() -> str:
    rows = []
    for verdict in Verdict:
        own = verdict == Verdict.USER_ERROR or verdict.recoverable
        own = own and verdict != Verdict.PARTLY_PLACED
        code = "0" if verdict == Verdict.SUCCEEDED else str(Judgement(verdict, "").code)
        rows.append(
            row(
                f"[`{verdict}`](#{verdict})",
                verdict.remedy,
                "starts by itself" if verdict.recoverable else "",
                "of the container" if own else code,
            )
        )
    return _table("verdict | what to do | a new attempt | exit code", rows)


def codes() -> str:
    named = {name: value for name, value in vars(exit_codes).items() if isinstance(value, int)}
    rows = [f"| {code} | `{name}` | {exit_codes.MEANING[code]} |" for name, code in named.items()]
    return _table("code | name | meaning", [*rows, "| 128+n | | ended by signal n |"])


def step(name: str) -> str:
    """Return the inputs and outputs of a step, from its compiled YAML.

    The inputs are those of the pipeline of one task, and the outputs those of the task itself,
    because KFP drops the descriptions of the pipeline's outputs.
    """
    definition = next(yaml.safe_load_all((COMPILED / f"{name}.yaml").read_text()))
    component_name = name.replace("_", "-")
    component = definition["components"][f"comp-{component_name}"]
    said = inspect.getdoc(
        next(it for it in PIPELINE_STEPS if it.name == component_name).python_func
    )
    meanings = {it.arg_name: it.description for it in docstring_parser.parse(said).params}
    for place, it in component["outputDefinitions"].get("artifacts", {}).items():
        it.setdefault("description", meanings[place])  # KFP drops it
    outputs = component["outputDefinitions"].get("parameters", {})
    if name == "preflight":  # the page has one line for the outputs that are settings of pods
        for key in [
            key for key in outputs if key.startswith(("prepare_data_", "evaluate_", "publish_"))
        ]:
            del outputs[key]
    inputs = definition["root"].get("inputDefinitions", {})
    parts = ("## Inputs", _of_definitions(inputs, True), "## Outputs")
    return "\n\n".join((*parts, _of_definitions(component["outputDefinitions"], False)))


def _of_definitions(definitions: dict[str, Any], inputs: bool) -> str:
    found, rows = definitions.get("parameters", {}), []
    for name in sorted(found, key=lambda name: (inputs and _is_optional(found[name]), name)):
        it, optional = found[name], _is_optional(found[name])
        default = [_default(it) if optional else "**required**"] if inputs else []
        meaning = _in_markdown(name, it) if inputs else _one_line(it)
        rows.append(row(f"`{name}`", _TYPES[it["parameterType"]], *default, meaning))
    for name, it in definitions.get("artifacts", {}).items():
        kind = it["artifactType"]["schemaTitle"].removeprefix("system.")
        default = ["" if it.get("isOptional") else "**required**"] if inputs else []
        rows.append(row(f"`{name}`", kind, *default, _one_line(it)))
    return _table("input | type | default | meaning" if inputs else "output | type | meaning", rows)


def _in_markdown(name: str, definition: dict[str, Any]) -> str:
    """Return what an input is, for a run parameter in Markdown and with a link to its keys."""
    text, parameter = _one_line(definition), PARAMETERS.get(name)
    if not parameter:
        return text
    keys = f" [All keys](../../docs/parameters.md#{name})." if parameter.group else ""
    return text.replace(parameter.plain_sentence, parameter.sentence) + keys


def _is_optional(definition: dict[str, Any]) -> bool:
    return bool(definition.get("isOptional")) or "defaultValue" in definition


def _default(definition: dict[str, Any]) -> str:
    value = definition.get("defaultValue", "")
    if definition["parameterType"] == "NUMBER_INTEGER":
        value = int(value)  # YAML of KFP has 1.0
    return f"`{json.dumps(value) if not isinstance(value, str) else value}`" if value != "" else ""


def _one_line(definition: dict[str, Any]) -> str:
    return " ".join(definition.get("description", "").split())


def command_audience() -> str:
    """Return who runs each command and why, with links to the commands' help."""
    rows = (
        row(f"[`{name}`](#{name.replace(' ', '-')})", reason)
        for name, reason in audience.COMMANDS.items()
    )
    return _table("command | who runs it, and why", rows)


def commands() -> str:
    """Return the help of every command; an option is described at the first command that has it.

    The options of run parameters only name their parameter, which another page describes.
    """
    parent = click.Context(main, info_name="kfp-tfjob", **main.context_settings)
    return "\n\n".join(_helps(main, parent, "##", {}))


def _helps(
    group: click.Group, parent: click.Context, level: str, described: dict[object, str]
) -> Iterator[str]:
    for name, command in group.commands.items():
        command = copy.copy(command)
        command.add_help_option = False  # the page has it once, for all commands
        context = click.Context(command, parent, name, max_content_width=92, terminal_width=92)
        title = context.command_path.removeprefix("kfp-tfjob ")
        elsewhere: dict[str, list[str]] = {}
        own = []
        for option in command.params:
            record = option.get_help_record(context) or object()
            is_parameter = option.name in PARAMETERS and isinstance(option, click.Option)
            first = described.setdefault(option.opts[0] if is_parameter else record, title)
            if first == title or isinstance(option, click.Argument):  # the usage names arguments
                own.append(_without_meaning(option) if is_parameter else option)
            else:
                elsewhere.setdefault(first, []).append(option.opts[0])
        command.params = own
        shown = command.get_help(context)
        listed = [
            f"{first}: {'options for run parameters' if '--set' in names else ', '.join(names)}"
            for first, names in elsewhere.items()
        ]
        if listed:
            shown += "\n\n" + fill(
                f"As for {'; '.join(listed)}.",
                92,
                initial_indent="  ",
                subsequent_indent="  ",
                break_on_hyphens=False,
            )
        # The commands of a group follow with their own help.
        shown = re.sub(r"\n\nCommands:\n(?:  \w.*\n?|     .*\n?)+", "\n", shown).rstrip()
        yield f"{level} {title}\n\n```text\n{shown}\n```"
        if isinstance(command, click.Group):
            yield from _helps(command, context, f"{level}#", described)


def _without_meaning(option: click.Option) -> click.Option:
    """Return the option of a run parameter with a help that is only its name and default."""
    option = copy.copy(option)
    name, _, meaning = (option.help or "").partition(": ")
    default = re.search(r"\[default: [^]]*\]$", meaning)
    option.help = f"{name} {default[0]}" if default else name
    return option


# Every call of storage/ on boto3's client, and the IAM action that AWS asks for.
_ACTIONS = {
    "get_object": ("s3:GetObject", "read data, manifests, records, models"),
    "head_object": ("s3:GetObject", "size, entity tag and checksum of an object"),
    "put_object": ("s3:PutObject", "every object up to 16 MiB"),
    "create_multipart_upload": ("s3:PutObject", "larger objects, in parts"),
    "upload_part": ("s3:PutObject", "the same"),
    "complete_multipart_upload": ("s3:PutObject", "the same"),
    "abort_multipart_upload": ("s3:AbortMultipartUpload", "discard the parts of a broken upload"),
    "list_objects_v2": (
        "s3:ListBucket, on the bucket",
        "find attempts, checkpoints, versions; without it, a missing object looks forbidden",
    ),
    "delete_object": (
        "s3:DeleteObject",
        "remove old checkpoints, the middle of very long logs, preflight's test objects, and"
        " what `kfp-tfjob models prune` deletes",
    ),
    "create_bucket": ("", "only the embedded store of a local run"),
}
_CALL = re.compile(r"client\.([a-z]\w+)\b")


def calls() -> set[str]:
    """Return the operations of S3 that the code calls."""
    known = set(_operations())
    text = "".join(path.read_text() for path in (Path(storage.__file__).parent).glob("*.py"))
    return set(_CALL.findall(text)) & known


def _operations() -> dict[str, str]:
    """Return the operations of S3 by boto3's names."""
    import boto3

    return boto3.client("s3", region_name="us-east-1").meta.method_to_api_mapping


def permissions() -> str:
    assert calls() == set(_ACTIONS), calls() ^ set(_ACTIONS)
    names = _operations()
    rows = []
    for call, (action, use) in _ACTIONS.items():
        name, comma, where = action.partition(",")
        if name:
            rows.append(row(f"`{names[call]}`", f"`{name}`{comma}{where}", use))
    return _table("call | IAM action | for", rows)


def settings() -> str:
    rows = (row(f"`{name}`", meaning) for name, meaning in VARIABLES.items())
    return _table("name | meaning", rows)


def client() -> str:
    rows = []
    for name, method in vars(Client).items():
        if not name.startswith("_") and inspect.isfunction(method):
            taken = [it for it in inspect.signature(method).parameters if it != "self"]
            first = inspect.getdoc(method).partition("\n\n")[0]
            rows.append(row(f"`{name}({', '.join(taken)})`", " ".join(first.split())))
    return _table("method | does", rows)


PARTS: list[tuple[str, str, Callable[[], str]]] = [
    ("docs/parameters.md", "parameters", parameters),
    *(
        ("docs/parameters.md", name, partial(keys, name))
        for name, parameter in PARAMETERS.items()
        if parameter.group
    ),
    ("docs/replica.md", "environment", environment),
    ("docs/failures.md", "verdicts", verdicts),
    ("docs/failures.md", "exit codes", codes),
    ("docs/operations.md", "permissions", permissions),
    ("docs/operations.md", "settings", settings),
    *((f"components/{name}/README.md", "interface", partial(step, name)) for name in STEPS),
    ("docs/command-line.md", "audience", command_audience),
    ("docs/command-line.md", "commands", commands),
    ("docs/python.md", "client", client),
]


def marks(name: str) -> tuple[str, str]:
    return f"<!-- generated: {name} -->\n\n", f"\n\n<!-- end: {name} -->"


def parts_of(path: Path) -> list[str]:
    lines = path.read_text().splitlines()
    return [
        line.removeprefix("<!-- generated: ").removesuffix(" -->")
        for line in lines
        if line.startswith("<!-- generated: ")
    ]
