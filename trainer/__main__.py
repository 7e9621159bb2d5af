"""`python -m kfp_tfjob.trainer`: train a model as one replica of a job.

Every setting is an environment variable (docs/replica.md) and also a command-line flag. The
supervisor of each replica starts it.
"""

from __future__ import annotations

import argparse
import errno
import logging
import os
import re
import signal
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from kfp_tfjob.common.errors import ConfigurationError, DataError, Problem, StepError
from kfp_tfjob.common.escaping import lines, uncolored
from kfp_tfjob.common.log_format import LogFormatter, log_to
from kfp_tfjob.features.tensorflow_import import load
from kfp_tfjob.storage.layout import CODE, ENCODED_ROWS, MODEL, dataset_digest
from kfp_tfjob.storage.secret_keys import MLFLOW_KEY
from kfp_tfjob.supervisor.cores import available_cores

from . import nccl, supervised
from .config import VARIABLES, Config
from .errors import (
    NotFiniteError,
    NotStartedError,
    PeerLostError,
    StoppedError,
    from_message,
    to_message,
    write_termination_message,
)
from .user_errors import FAILURES, where

if TYPE_CHECKING:
    from kfp_tfjob.features.schema import Schema

    from .encoded_rows import EncodedRows
    from .replicas import Replicas

log = logging.getLogger("kfp_tfjob.trainer")
# Errors that TensorFlow raises when another process of the cluster is gone, and those that it also
# raises for other reasons.
_PEER_ERRORS = ("UnavailableError", "AbortedError", "DeadlineExceededError", "CancelledError")
_POSSIBLE_PEER_ERRORS = ("InternalError", "FailedPreconditionError", "UnknownError")
# A chief that is back before the others notice that it was gone does not know them. This is an
# InvalidArgumentError like many of a model's, but of a request that no model code makes.
_UNKNOWN_PEER, _PEER_REQUEST = "InvalidArgumentError", "/tensorflow.CoordinationService/"
# TensorFlow puts this before the text of an error from the Python code that reads rows.
_DATA_ERROR_PREFIX = "DataError: "
# The message of the operation that decodes images, if one is damaged.
_DAMAGED_IMAGE = re.compile(r"Invalid (JPEG|PNG) data[^\n\[]*")
# Python and TensorFlow use the same text for a full disk.
_DISK_FULL = os.strerror(errno.ENOSPC)
# A restart would not change these exit codes, so the other replicas must not wait for this one.
_FINAL_CODES = range(1, 5)
# Tests of a model take seconds, so they run once per run: not for this project's own models, and
# not in a pod that has this file in its JOB_DIR.
_BUILT_IN, _TESTED = "kfp_tfjob.trainer.models:", ".tested"
# Words in the messages of errors that a lost connection to another replica causes.
_PEER_WORDS = (
    "collective",
    "coordination",
    "barrier",
    "socket closed",
    "connection re",
    "heartbeat",
)


class _Signals:
    """Whether a signal asked this process to stop; the training loop reads it between steps."""

    def __init__(self) -> None:
        self.stop_requested = False

    def listen(self) -> None:
        """Catch signals. Call this after the strategy is built: TensorFlow sets handlers there."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._request_stop)

    def _request_stop(self, number: int, _frame: object) -> None:
        self.stop_requested = True
        log.info("%s: stopping after the current steps", signal.Signals(number).name)


def train(config: Config, started: float) -> None:
    """Run one replica from its configuration to the exported model.

    Args:
        config: The configuration from the environment.
        started: Monotonic time when the process started.

    Raises:
        StepError: The training failed; the subclass has the exit code.
    """
    nccl.prepare(config.job_dir, config.expected_gpus)
    log.info("loading TensorFlow")
    load(config.expected_gpus)
    import keras

    from kfp_tfjob.storage.credentials import SecretVolume
    from kfp_tfjob.storage.store import Store

    from . import export_test, label_test, probabilities, self_test, user_model
    from .dataset import Dataset
    from .export import export, settle
    from .loop import Training
    from .replicas import Replicas
    from .staging import stage, work_in

    store = Store()
    replicas = mlflow = None
    try:
        replicas = Replicas.start(config)
        signals = _Signals()
        signals.listen()
        supervised.started()
        encoded = config.job_dir / ENCODED_ROWS
        manifest = stage(store, config.dataset_uri, config.job_dir / "data", encoded)
        uri = str(config.dataset_uri)

        def encode(schema: Schema) -> EncodedRows:
            return _encode(config, schema, manifest.digest, replicas, signals)

        dataset = Dataset.load(config.job_dir / "data", manifest.digest, uri, encode)
        work_in(config.output_dir)
        keras.utils.set_random_seed(config.options.seed)
        if config.options.precision:
            keras.mixed_precision.set_global_policy(config.options.precision)
        function = user_model.find(config.model_code, config.job_dir / CODE)
        with replicas.strategy.scope():
            model = user_model.build(function, dataset, config.hyperparameters)
            _log_info()
            user_model.check(model, function, dataset, replicas.count, config.options)
        self_test.check_sum(replicas)
        tested = config.job_dir / _TESTED
        is_first = replicas.any(config.attempt == 1 and not tested.exists())
        is_user_model = not config.model_code.startswith(_BUILT_IN)
        if is_first and is_user_model:
            label_test.check_values(model, dataset, replicas, config.options)
            self_test.check_step(model, dataset, replicas, config.options)
        self_test.check_loss(model, dataset, replicas, config.options)
        self_test.check_model(model, dataset, replicas)
        rows = max(1, config.batch_size // replicas.count)
        if is_first:
            logits = probabilities.check(model, dataset, replicas, rows)
            if replicas.chief:
                export_test.check_graph(model, dataset, logits)
                if is_user_model:
                    export_test.check_answer(model, dataset, logits)
        tested.touch()
        training = Training(
            config,
            dataset,
            model,
            replicas,
            lambda: signals.stop_requested,
            lambda: user_model.callbacks(config.model_code, dataset),
        )
        _log_info()
        has_mlflow = os.environ.get(MLFLOW_KEY) or SecretVolume.from_environment().get(MLFLOW_KEY)
        if has_mlflow and replicas.chief:
            from .mlflow_process import MlflowProcess

            mlflow = MlflowProcess(config, dataset_digest(config.dataset_uri, manifest))
        ready = time.monotonic()
        result = training.run()
        trained = time.monotonic()
        logits = probabilities.check(model, dataset, replicas, rows)
        settle(model, replicas)
        if replicas.chief:
            export(model, dataset, config.output_dir, logits)
            log.info("the model is in %s", config.output_dir / MODEL)
        replicas.part()
    except (NotFiniteError, StoppedError) as error:
        # All replicas end this way, so the first one to leave must not count as lost.
        with suppress(Exception):
            if replicas:
                replicas.part()
        if mlflow:
            mlflow.fail(error, is_final=True)
        raise
    except FAILURES as error:
        nccl.log_warnings(config.job_dir)
        peer_error = from_message(error)
        failure = peer_error or _translate_error(error, config.cluster.size, config.output_dir)
        if (
            replicas
            and not peer_error
            and isinstance(failure, StepError)
            and failure.code in _FINAL_CODES
        ):
            replicas.tell(to_message(failure, config.cluster.name))
        if mlflow:
            mlflow.fail(failure, getattr(failure, "code", 1) in _FINAL_CODES)
        raise failure from error
    export_seconds = time.monotonic() - trained
    training.finish(result, ready - started, trained - ready, export_seconds)
    if mlflow:
        mlflow.finish()


def _encode(
    config: Config, schema: Schema, digest: str, replicas: Replicas, signals: _Signals
) -> EncodedRows:
    """Encode the dataset's rows; every replica gets the moments of the chief."""
    from .encoded_rows import EncodedDocument, encode_rows
    from .staging import not_writable

    try:
        rows = encode_rows(
            config.job_dir / "data",
            config.job_dir / ENCODED_ROWS,
            schema,
            digest,
            uri=str(config.dataset_uri),
            threads=max(1, available_cores() // config.replicas_on_this_machine),
            stop=lambda: signals.stop_requested,
            deletes_shards=True,
        )
    except OSError as error:
        raise not_writable(config.job_dir / ENCODED_ROWS, "the encoded rows", error) from error
    except StoppedError as error:
        # The other replicas would wait for this one in vain.
        replicas.tell(to_message(error, config.cluster.name))
        raise
    # Another kind of processor may round the last digit of a sum in another way.
    document = EncodedDocument(digest, rows.columns).to_bytes()
    return replace(rows, columns=EncodedDocument.from_bytes(replicas.share(document)).columns)


def _translate_error(error: Exception | SystemExit, processes: int, output: Path) -> Exception:
    """Translate an error of TensorFlow into an error with the exit code of its cause."""
    errors = (error, error.__cause__)
    if full := next((cause for cause in errors if isinstance(cause, MemoryError)), None):
        return ConfigurationError(
            Problem(
                "this replica ran out of memory",
                received=str(full) or "no more memory",
                expected="enough memory for the training data, the model and a batch",
                fix="raise pod.all.memory, or set a smaller train_batch_size",
                path="pod.all.memory",
                name="out_of_memory",
            )
        )
    if isinstance(error, StepError):
        return (processes > 1 and _lost_peer(error)) or error
    if isinstance(error, SystemExit):
        # It could end this process with code 0, as if the model were trained.
        return ConfigurationError(
            Problem(
                "the model code ended the process",
                received=where(error),
                expected="code that returns, or raises an error",
                fix="remove sys.exit() or exit() from it",
                name="model-function-failed",
            )
        )
    message = str(error)
    if _DISK_FULL in message:
        from .staging import not_writable

        return not_writable(output, "the output", OSError(errno.ENOSPC, _DISK_FULL))
    if _DATA_ERROR_PREFIX in message:
        details = message.partition(_DATA_ERROR_PREFIX)[2]
        return DataError(details.partition("\nTraceback")[0].strip())
    if damaged := _DAMAGED_IMAGE.search(message):
        return DataError(
            Problem(
                "an image in the dataset cannot be decoded",
                received=damaged[0],
                expected="images whose pixels are intact, not only their headers",
                fix='find the file with data_options={"images": {"verify": "decode"}}; with'
                " on_bad_row=drop, it is dropped",
                name="damaged-image",
            )
        )
    if "gRPC server" in message:
        return NotStartedError(
            Problem(
                "this replica cannot listen on its address in TF_CONFIG",
                received=message.splitlines()[0][:300],
                expected="a free port",
                fix="stop the program that uses the port, then run again",
            )
        )
    return (processes > 1 and _lost_peer(error)) or error


def _lost_peer(error: BaseException) -> PeerLostError | None:
    """Return a PeerLostError if the loss of another replica caused `error`; None otherwise.

    Creating a variable communicates too, so the loss may have made the user's code fail.
    """
    cause: BaseException | None = error
    while cause is not None:
        kind = type(cause).__name__
        message_lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
        # The first line is often only the name of a graph.
        reasons = [
            line for line in message_lines if any(word in line.lower() for word in _PEER_WORDS)
        ]
        if not reasons and cause is error and kind in _PEER_ERRORS:
            reasons = message_lines
        is_unknown = kind == _UNKNOWN_PEER and _PEER_REQUEST in str(cause)
        if is_unknown or (reasons and kind in _PEER_ERRORS + _POSSIBLE_PEER_ERRORS):
            return PeerLostError(f"another replica was lost ({kind}: {reasons[0][:300]})")
        cause = cause.__cause__ or cause.__context__
    return None


def _with_flags(arguments: Sequence[str], environment: Mapping[str, str]) -> dict[str, str]:
    """Return `environment` with the values of the command-line flags, which take precedence."""
    parser = argparse.ArgumentParser(prog="python -m kfp_tfjob.trainer", description=__doc__)
    for name, meaning in VARIABLES.items():
        flag = "--" + name.lower().replace("_", "-")
        parser.add_argument(flag, metavar=name, help=meaning)
    values = {name.upper(): value for name, value in vars(parser.parse_args(arguments)).items()}
    return dict(environment) | {name: value for name, value in values.items() if value is not None}


def _log_info() -> None:
    """Make this program's log lines appear even if the user's code has reconfigured logging.

    The launcher ends a chief that logs nothing for long.
    """
    logging.disable(logging.NOTSET)
    handlers = [
        handler for handler in logging.root.handlers if isinstance(handler.formatter, LogFormatter)
    ]
    if not handlers:
        logging.root.addHandler(log_to(sys.stdout))
    for handler in handlers:
        handler.setLevel(logging.NOTSET)
    package = log.name.partition(".")[0]
    for name, logger in logging.root.manager.loggerDict.items():
        if isinstance(logger, logging.Logger) and name.split(".")[0] == package:
            logger.disabled, logger.propagate = False, True
            logger.setLevel(logging.NOTSET)
    logging.getLogger(package).setLevel(logging.INFO)


def main(arguments: Sequence[str]) -> int:
    """Run the trainer and return its exit code."""
    started = time.monotonic()
    logging.basicConfig(level=logging.INFO, handlers=[log_to(sys.stdout)])
    logging.getLogger("botocore").setLevel(logging.WARNING)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        config = Config.from_environment(_with_flags(arguments, os.environ))
        if config.cluster.size == 1:
            os.environ.pop("TF_CONFIG", None)
        train(config, started)
    except StepError as error:
        log.error("%s", error)
        write_termination_message(str(error), error.problem_name)
        return error.code
    except Exception as error:
        print(lines(traceback.format_exc()), file=sys.stderr, flush=True)
        write_termination_message(f"{type(error).__name__}: {uncolored(str(error))}")
        return 1
    return 0


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    # The destructors of TensorFlow take seconds and wait for replicas that are gone.
    os._exit(code)
