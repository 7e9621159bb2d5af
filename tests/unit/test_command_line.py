"""The command line as a whole: it starts fast, explains, and knows a run by the start of its id."""

import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

import kfp_tfjob.pipelines.__main__ as start
from kfp_tfjob.common.errors import ConfigurationError
from kfp_tfjob.pipelines.cli import main
from kfp_tfjob.pipelines.commands.run import _read_parameters
from kfp_tfjob.pipelines.local.home import PARAMETERS, Home
from kfp_tfjob.pipelines.stored_run import local_folder
from kfp_tfjob.registry.run_folder import full_id

HEAVY = ("kfp", "kubernetes", "tensorflow", "keras", "boto3", "botocore", "numpy", "pyarrow")


def test_help_loads_no_heavy_package():
    code = (
        "import sys; from click.testing import CliRunner; from kfp_tfjob.pipelines.cli import main;"
        "assert CliRunner().invoke(main, ['--help']).exit_code == 0;"
        f"sys.exit(' '.join(name for name in {HEAVY} if name in sys.modules) or None)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert not found.stderr
    assert found.returncode == 0


def test_help_groups_the_commands_and_lists_each_once() -> None:
    text = CliRunner().invoke(main, ["--help"]).output
    sections = text.partition("Show this message and exit.\n")[2]
    listed = re.findall(r"^  (\w+)  ", sections, re.MULTILINE)
    assert sorted(listed) == sorted(main.commands)
    assert len(re.findall(r"^\w.*:$", sections, re.MULTILINE)) >= 4


@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        (("runs", "--home", "other", "prune", "--apply"), "write --home after prune"),
        (("runs", "--endpoint", "http://s3:9000", "prune"), "write --endpoint after prune"),
        (("runs", "--model", "m", "prune", "--apply"), "omit --model"),
        (("schedule", "--json", "--cron", "@daily", "list"), "write --json after list"),
    ],
)
def test_an_option_that_a_subcommand_would_ignore_is_refused(arguments, remedy) -> None:
    """`runs --home other prune --apply` deleted in the default folder."""
    with pytest.raises(click.UsageError) as caught:
        main.main(list(arguments), standalone_mode=False)
    assert remedy in caught.value.message


def test_a_command_about_runs_loads_nothing_that_reads_data() -> None:
    code = (
        "import sys, kfp_tfjob.pipelines.kubeflow.client;"
        "sys.exit(' '.join({'numpy', 'pyarrow', 'pandas', 'jinja2'} & set(sys.modules)) or None)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize(("encoding", "starts"), [("utf-8", 0), ("iso8859-1", 1)])
def test_a_shell_of_another_encoding_starts_it_again(
    monkeypatch: pytest.MonkeyPatch, encoding: str, starts: int
) -> None:
    started = []
    monkeypatch.setenv("PYTHONUTF8", "")  # removed again at the end
    monkeypatch.delenv("PYTHONUTF8")
    monkeypatch.setattr(sys, "getfilesystemencoding", lambda: encoding)
    monkeypatch.setattr(os, "execv", lambda *command: started.append(command))
    for _ in range(2):  # the second start is in UTF-8, or Python does not know this mode
        start._use_utf_8()
    assert started == [(sys.executable, [sys.executable, *sys.orig_argv[1:]])] * starts
    assert os.environ.get("PYTHONUTF8") == ("1" if starts else None)


@pytest.mark.parametrize("option", ["--max-psi", "--max-unseen", "--max-gap-rise"])
def test_nan_is_no_limit(option: str) -> None:
    """Nothing exceeds NaN, so no drift would ever be reported."""
    assert CliRunner().invoke(main, ["monitor", "m", option, "nan"]).exit_code == 2


def test_the_command_explains_one_key_and_tells_where_another_is() -> None:
    def command(name: str) -> Result:
        return CliRunner().invoke(main, ["explain", name])

    one = command("train_options.seed")
    assert one.exit_code == 0 and one.stdout.startswith("train_options.seed")
    assert len(one.stdout.splitlines()) < 5
    of_role = command("pod.chief.cpu")
    assert of_role.exit_code == 0 and "pod.all.cpu\n" in of_role.stdout
    assert command("pod.chief.cpus").exit_code == ConfigurationError.code
    wrong = command("seed")
    assert wrong.exit_code == ConfigurationError.code
    assert "kfp-tfjob explain train_options.seed" in wrong.stderr and "--set" not in wrong.stderr


KNOWN = ["c82b2f4a-1", "c82b9999-1", "c82b9999-10", "f00d"]


@pytest.mark.parametrize(
    ("given", "found"),
    [("f", "f00d"), ("c82b2", "c82b2f4a-1"), ("c82b9999-1", "c82b9999-1"), ("", ""), ("x", "x")],
)
def test_a_unique_beginning_is_enough(given: str, found: str) -> None:
    assert full_id(given, KNOWN) == found


def test_a_run_on_this_machine_is_found_by_its_beginning(tmp_path: Path) -> None:
    home = Home(tmp_path)
    for name in ("20261123-193500-ab12", "20261123-204500-cd34"):
        home.run(name).mkdir(parents=True)
        (home.run(name) / PARAMETERS).write_text('{"a": 1}')
    assert local_folder(home, "20261123-19", local=True) == home.run("20261123-193500-ab12")
    assert local_folder(home, "c82b2f4a", local=False) is None  # of Kubeflow Pipelines
    with pytest.raises(ConfigurationError, match="begin with 2026"):
        local_folder(home, "2026", local=False)
    known = [path.name for path in home.run("x").parent.glob("*")]
    assert _read_parameters(home, full_id("20261123-20", known)) == {"a": 1}
