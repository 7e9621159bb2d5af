"""What the supervisor shares with the other packages: exit codes, the environment, durations."""

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from kfp_tfjob.common.errors import StepError
from kfp_tfjob.jobs.verdict import ContainerFailure
from kfp_tfjob.supervisor import exit_codes
from kfp_tfjob.supervisor.environment import Environment, Refused, seconds_of
from kfp_tfjob.supervisor.pack import NAME, pack
from kfp_tfjob.trainer import errors  # noqa: F401 - its errors are subclasses of StepError
from kfp_tfjob.uploader import ownership  # noqa: F401


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("60", 60),
        ("60s", 60),
        ("500ms", 0.5),
        ("2m", 120),
        ("1.5h", 5400),
        (" 0s\n", 0),
        *((text, None) for text in ("", "soon", "nan", "inf", "-5", "1e3", "1h30m", "5 s", "s")),
    ],
)
def test_a_duration(text: str, seconds: float | None) -> None:
    assert seconds_of(text) == seconds


def test_limits_are_durations_and_counts_are_whole() -> None:
    told = Environment.read({"START_DEADLINE": "2m", "STORE_DEADLINE": "0.5", "ATTEMPT": "3"})
    assert (told.start_deadline, told.store_deadline, told.attempt) == (120, 0.5, 3)
    for name in ("ATTEMPT", "MAX_RESTARTS"):
        with pytest.raises(Refused) as refused:
            Environment.read({name: "1.5"})
        assert name in refused.value.what
        assert refused.value.received == "'1.5'"


def test_each_exit_code_has_one_name_and_one_meaning() -> None:
    named = {name: value for name, value in vars(exit_codes).items() if isinstance(value, int)}
    assert sorted(named.values()) == sorted(exit_codes.MEANING)


def test_a_code_that_only_steps_use_is_the_users_own_in_a_replica() -> None:
    for own_code in (6, 200, 255):
        assert exit_codes.meaning_of(own_code).endswith(f"exited with code {own_code}")
    assert "SIGABRT" in exit_codes.meaning_of(134)
    failure = ContainerFailure("chief-0", "tensorflow", 6, "Error", "", "")
    assert failure.sentence.startswith("chief-0 ") and " 6: " in failure.sentence
    for code, meaning in ((255, "the program's own code"), (134, "killed by signal 6")):
        assert replace(failure, code=code).sentence.endswith(f"code {code}: {meaning}")


def test_every_error_has_a_code_of_the_table() -> None:
    kinds = [StepError]
    for kind in kinds:
        kinds += kind.__subclasses__()
    assert {kind.code for kind in kinds} <= exit_codes.MEANING.keys()


def test_the_packed_file_is_always_the_same_and_has_one_name_for_a_module(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        pack(tmp_path / folder / NAME)
    packed = tmp_path / "a" / NAME
    assert packed.read_bytes() == (tmp_path / "b" / NAME).read_bytes()
    command = [sys.executable, "-S", "-v", str(packed), "--", "true"]
    done = subprocess.run(command, env={}, capture_output=True, text=True, check=True)
    ours = re.findall(r"^import '(.*supervisor.*)' #.*$", done.stderr, re.MULTILINE)
    assert "kfp_tfjob.supervisor.supervise" in ours
    assert all(name.startswith("kfp_tfjob.supervisor") for name in ours)
    assert len(ours) == len(set(ours))
    assert "kfp_tfjob.storage" not in done.stderr
