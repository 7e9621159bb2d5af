"""The command line as a whole: it starts fast, and every command is a file of its own."""

import os
import subprocess
import sys

import pytest
from click.testing import CliRunner, Result

import kfp_tfjob.pipelines.__main__ as start
from kfp_tfjob.pipelines.cli import main
from kfp_tfjob.storage.errors import ConfigurationError

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
    wrong = command("seed")
    assert wrong.exit_code == ConfigurationError.code
    assert "kfp-tfjob explain train_options.seed" in wrong.stderr and "--set" not in wrong.stderr
