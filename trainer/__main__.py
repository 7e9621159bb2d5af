"""`python -m trainer`: train the model the environment describes, as one replica of the job.

Everything it is told is in the environment (ARCHITECTURE.md); a flag is another way to say it.
`python -m trainer check` says what of it is missing or wrong, also for a program of your own.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

from storage.errors import DataError, Problem, StepError
from trainer.config import VARIABLES, Config
from trainer.exits import NotStartedError, PeerLostError, leave_last_words
from trainer.load import load

log = logging.getLogger("trainer")
# What TensorFlow says when another process of the cluster is gone.
_PEER_ERRORS = ("UnavailableError", "AbortedError", "DeadlineExceededError", "CancelledError")
_PEER_WORDS = ("collective", "coordination", "socket closed", "connection re", "heartbeat")


class _Signals:
    """Remembers that this process was told to stop."""

    def __init__(self) -> None:
        self.told = False

    def listen(self) -> None:
        """Catch signals; only after the strategy is built, because TensorFlow takes them then."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._tell)

    def _tell(self, number: int, _frame: object) -> None:
        self.told = True
        log.info("%s: stopping after the steps under way", signal.Signals(number).name)


def train(config: Config, started: float) -> None:
    """Run one replica from its configuration to the exported model.

    Args:
        config: What the environment says.
        started: Monotonic time at which the process began.

    Raises:
        StepError: In one of its forms, with the exit code it stands for.
    """
    log.info("loading TensorFlow")
    load(config.expected_gpus)
    import keras

    from trainer import user_code
    from trainer.dataset import Dataset
    from trainer.export import export
    from trainer.loop import Training
    from trainer.replicas import Replicas

    try:
        replicas = Replicas.start(config)
        signals = _Signals()
        signals.listen()
        dataset = Dataset.load(_stage(config))
        keras.utils.set_random_seed(config.options.seed)
        if config.options.mixed_precision:
            keras.mixed_precision.set_global_policy(config.options.mixed_precision)
        function = user_code.find(config.model_code, config.job_dir / "code")
        with replicas.strategy.scope():
            model = user_code.build(function, dataset, config.hyperparameters)
            user_code.check(model, function, dataset, replicas.count)
        training = Training(config, dataset, model, replicas, lambda: signals.told)
        ready = time.monotonic()
        result = training.run()
        trained = time.monotonic()
        gpus = replicas.gpu_summaries()
        if replicas.chief:
            export(model, dataset, config.output_dir)
            log.info("the model is in %s", config.output_dir / "model")
        replicas.wait()  # a chief whose workers are gone takes it for a failure after a while
    except Exception as error:
        raise _explained(error, config.cluster.size) from error
    seconds = {"start": round(ready - started, 3), "train": round(trained - ready, 3)}
    training.finish(result, seconds, gpus)


def _stage(config: Config) -> Any:
    """Bring the dataset to this machine, proven by its manifest; the test rows stay away."""
    from storage.store import Store
    from uploader import pull

    folder = config.job_dir / "data"
    pull(Store(), config.dataset_uri, folder, only=lambda key: not key.startswith("test-"))
    return folder


def _explained(error: Exception, processes: int) -> Exception:
    """Return an error of TensorFlow as one whose exit code says whose fault it is."""
    if isinstance(error, StepError):
        return error
    from trainer.inputs import WRONG_LABEL

    kind, text = type(error).__name__, str(error)
    if WRONG_LABEL in text:
        return DataError(
            Problem(
                "a label of the dataset is not one of its classes",
                received=text[text.find(WRONG_LABEL) :][:200].replace("\n", " "),
                expected="whole numbers below the number of classes in schema.json",
                fix="prepare the dataset again",
            )
        )
    if "gRPC server" in text:
        return NotStartedError(
            Problem(
                "this replica cannot listen on its address in TF_CONFIG",
                received=text.splitlines()[0][:300],
                expected="a free port",
                fix="run again; end what has taken the port",
            )
        )
    speaks_of_peers = any(word in text.lower() for word in _PEER_WORDS)
    about_peers = kind in _PEER_ERRORS or (
        kind in ("InternalError", "FailedPreconditionError", "UnknownError") and speaks_of_peers
    )
    if processes > 1 and about_peers:
        return PeerLostError(f"another replica was lost ({kind}: {text.splitlines()[0][:300]})")
    if kind in ("DataLossError",) or "Could not parse example" in text:
        return DataError(
            Problem(
                "a record of the dataset cannot be read",
                received=f"{kind}: {text.splitlines()[0][:300]}",
                expected="tf.train.Example with `features` and `label`",
                fix="prepare the dataset again",
            )
        )
    return error


def _with_flags(arguments: Sequence[str], environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment with the flags of the command line in it."""
    parser = argparse.ArgumentParser(prog="python -m trainer", description=__doc__)
    for name, meaning in VARIABLES.items():
        flag = "--" + name.lower().replace("_", "-")
        parser.add_argument(flag, metavar=name, help=meaning)
    given = {name.upper(): value for name, value in vars(parser.parse_args(arguments)).items()}
    return dict(environment) | {name: value for name, value in given.items() if value is not None}


def main(arguments: Sequence[str]) -> int:
    """Run and return the exit code."""
    started = time.monotonic()
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S", stream=sys.stdout
    )
    logging.getLogger("botocore").setLevel(logging.WARNING)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if arguments[:1] == ["check"]:
        from trainer import check

        return check.main(arguments[1:])
    try:
        config = Config.from_environment(_with_flags(arguments, os.environ))
        if config.cluster.size == 1:
            os.environ.pop("TF_CONFIG", None)
        train(config, started)
    except StepError as error:
        log.error("%s", error)
        leave_last_words(str(error))
        return error.code
    except Exception as error:
        traceback.print_exc()
        leave_last_words(f"{type(error).__name__}: {error}")
        return 1
    return 0


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    # The destructors of TensorFlow take seconds, and wait for replicas that are gone.
    os._exit(code)
