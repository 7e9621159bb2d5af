"""`python -m kfp_tfjob.uploader watch`: the command of the chief's sidecar."""

from __future__ import annotations

import signal
import sys
from threading import Event

# Set by the signals that end the sidecar. The first process of a container receives only signals
# that it handles, so the handlers come before the slow imports.
_ENDED = Event()
if __name__ == "__main__" and sys.argv[1:2] == ["watch"]:
    for _number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(_number, lambda *_: _ENDED.set())

import argparse
import logging
import os
from pathlib import Path

from kfp_tfjob.common.errors import ConfigurationError, Problem, StepError
from kfp_tfjob.common.log_format import log_to
from kfp_tfjob.storage.address import S3Address


def _watch(arguments: argparse.Namespace) -> int:
    from .watch import Settings, run_sidecar

    run = S3Address.parse(arguments.address)
    if not arguments.attempt.isdecimal() or int(arguments.attempt) < 1:
        raise ConfigurationError(
            Problem(
                "the attempt is not valid",
                received=repr(arguments.attempt),
                expected="a whole number, 1 or more",
                fix="set ATTEMPT, or give --attempt",
            )
        )
    settings = Settings(
        arguments.folder,
        run,
        arguments.run_id or run.name,
        int(arguments.attempt),
        arguments.interval,
        arguments.grace,
    )
    from kfp_tfjob.storage.retry import Patience
    from kfp_tfjob.storage.store import Store

    # Few retries, because each pass sets its priorities again. The mirror logs once that the store
    # is unreachable, and once that it is reachable again.
    logging.getLogger("kfp_tfjob.storage.retry").setLevel(logging.ERROR)
    store = Store(arguments.endpoint, patience=Patience(seconds=2, longest=0.5))
    return run_sidecar(settings, store, _ENDED)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m kfp_tfjob.uploader")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    summary = "mirror the chief's output while it trains"
    watch = commands.add_parser("watch", help=summary, description=summary)
    add = watch.add_argument
    add("folder", type=Path, help="the chief's OUTPUT_DIR")
    add("address", help="the run: s3://BUCKET/.../runs/RUN_ID")
    add("--endpoint", default="", help="the store's URL; default: the one in the Secret")
    add("--run-id", default=os.environ.get("RUN_ID", ""), help="default: RUN_ID, or the address's")
    add("--attempt", default=os.environ.get("ATTEMPT", ""), help="default: ATTEMPT")
    add("--interval", type=float, default=1.0, help="seconds between two scans; default 1")
    add("--grace", type=float, default=600.0, help="seconds to store the rest after SIGTERM")
    return parser


def main() -> int:
    """Run the sidecar and return its exit code."""
    arguments = _parser().parse_args()
    logging.basicConfig(level=logging.INFO, handlers=[log_to(sys.stdout)])
    logging.getLogger("botocore").setLevel(logging.WARNING)
    try:
        return _watch(arguments)
    except StepError as error:
        print(error, file=sys.stderr)
        return error.code


if __name__ == "__main__":
    sys.exit(main())
