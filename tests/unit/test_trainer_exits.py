"""What one process tells the others is found again in the errors of TensorFlow."""

import errno
import os
import sys
from pathlib import Path

import pytest
import tensorflow as tf

from kfp_tfjob.common.docs_page import split_address
from kfp_tfjob.common.errors import ConfigurationError, DataError, Problem, StepError
from kfp_tfjob.trainer.__main__ import _translate_error
from kfp_tfjob.trainer.errors import (
    NotFiniteError,
    PeerLostError,
    from_message,
    to_message,
    write_termination_message,
)


@pytest.mark.parametrize("name", ["", "loss-mismatch"])
@pytest.mark.parametrize("kind", [StepError, ConfigurationError, DataError, NotFiniteError])
def test_an_error_arrives_as_what_it_was(kind: type[StepError], name: str) -> None:
    error = kind(Problem("one\nthing", "a > b", 3, "mend it", name=name), "another thing")
    message = to_message(error, "worker 1")
    assert "\n" not in message
    text = f"Collective ops is aborted by: {message}\nThe error could be from a previous"
    for wrapped in (text, text + text):
        found = from_message(RuntimeError(wrapped))
        assert type(found) is kind
        assert str(found).startswith("worker 1: ") and "a > b" in str(found)
        assert str(found).rstrip(".").endswith("another thing")
        assert found.problem_name == name


def test_an_error_is_found_below_what_it_caused() -> None:
    message = to_message(DataError("wrong"), "chief")
    try:
        try:
            raise RuntimeError(message)
        except RuntimeError as error:
            raise ConfigurationError("mlp failed") from error
    except ConfigurationError as error:
        found = from_message(error)
    assert isinstance(found, DataError)
    assert str(found) == "chief: wrong"
    assert from_message(RuntimeError("Socket closed")) is None


def test_a_long_error_is_cut_off_and_still_understood() -> None:
    found = from_message(RuntimeError(to_message(StepError("x" * 9999), "chief")))
    assert found is not None and 1000 < len(str(found)) < 3000


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has /dev/full")
def test_last_words_that_cannot_be_left_do_not_hide_the_exit_code(monkeypatch) -> None:
    monkeypatch.setenv("TERMINATION_LOG", "/dev/full")  # where every write finds a full disk
    write_termination_message("why")


@pytest.mark.parametrize("kind", [OSError, RuntimeError])
def test_a_full_disk_is_told_as_one(kind: type[Exception]) -> None:
    error = kind(f"model/saved_model.pb; {os.strerror(errno.ENOSPC)}")
    found = _translate_error(error, 2, Path("/job/output"))
    assert isinstance(found, ConfigurationError)
    assert "/job/output" in str(found) and "No space" in str(found)


UNKNOWN = (  # of a chief that was back three seconds after it was killed
    "Collective ops is aborted by: Task with task_name=/job:worker/replica:0/task:0 must be"
    " registered before sending heartbeat messages. The service might have restarted, please"
    " restart / reset and register again.\n\nRPC: /tensorflow.CoordinationService/Heartbeat"
)


@pytest.mark.parametrize(
    ("kind", "text", "lost"),
    [
        (tf.errors.InvalidArgumentError, UNKNOWN, True),
        (tf.errors.InvalidArgumentError, "Collective ops is aborted by: shapes differ", False),
        (tf.errors.UnavailableError, "Collective ops is aborted by: Failed to send RPC", True),
        (tf.errors.UnavailableError, "gs://bucket/weights cannot be read", False),
        (ValueError, "no collective", False),
    ],
)
def test_a_lost_replica_that_made_the_users_code_fail_is_told_as_one(kind, text, lost) -> None:
    error = ConfigurationError("build_model failed")
    error.__cause__ = kind(text) if kind is ValueError else kind(None, None, text)
    assert isinstance(_translate_error(error, 2, Path("/job")), PeerLostError) == lost
    assert _translate_error(error, 1, Path("/job")) is error


def test_words_that_no_encoding_takes_are_left_all_the_same(tmp_path, monkeypatch) -> None:
    words = tmp_path / "words"
    words.touch()
    monkeypatch.setenv("TERMINATION_LOG", str(words))
    write_termination_message("a file \udcff é" + "é" * 5000)
    assert words.read_bytes().startswith("a file \\udcff é".encode())
    assert len(words.read_bytes()) == 4096


def test_a_message_ends_with_the_name_of_the_problem(tmp_path, monkeypatch) -> None:
    path = tmp_path / "message"
    path.touch()
    monkeypatch.setenv("TERMINATION_LOG", str(path))
    write_termination_message("é" * 5000, "loss-mismatch")
    text = path.read_bytes().decode(errors="replace")
    assert split_address(text)[1] == "loss-mismatch"
    assert split_address(text)[0].startswith("é" * 2000)
    assert 4095 <= len(path.read_bytes()) <= 4096
