"""The command line of the uploader: runs the chief's sidecar; sends, fetches, verifies folders."""

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

from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.errors import ConfigurationError, DataError, Problem, StepError
from kfp_tfjob.storage.escaping import log_to
from kfp_tfjob.storage.options import VARIABLES
from kfp_tfjob.supervisor import exit_codes

_CODES = (
    *(exit_codes.DONE, exit_codes.FAILED, exit_codes.CONFIGURATION, exit_codes.DATA),
    exit_codes.NOT_STORED,
)
_EPILOG = """
credentials: the mounted Secret that STORAGE_SECRET_DIR names, otherwise the AWS chain: environment,
  web identity, shared files. A running command rereads them.

environment, or keys of the Secret:
  AWS_ENDPOINT_URL, AWS_REGION: used without --endpoint and --region
{variables}
  http_proxy, https_proxy, no_proxy: as usual; PUT requests then go through boto3

exit codes:
{codes}
""".format(
    variables="\n".join(f"  {name}: {text}" for name, text in VARIABLES.items()),
    codes="\n".join(f"  {code}: {exit_codes.MEANING[code]}" for code in _CODES),
)


def _watch(arguments: argparse.Namespace) -> int:
    from kfp_tfjob.uploader.watch import Settings, run_sidecar

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
        arguments.snapshots,
        arguments.grace,
        arguments.workers,
    )
    from kfp_tfjob.storage.retry import Patience
    from kfp_tfjob.storage.store import Store

    # A short patience: each pass sets its priorities again. The mirror logs once that the store is
    # unreachable, and once that it is back.
    logging.getLogger("kfp_tfjob.storage.retry").setLevel(logging.ERROR)
    store = Store(arguments.endpoint, arguments.region, patience=Patience(seconds=2, longest=0.5))
    return run_sidecar(settings, store, _ENDED)


def _push(arguments: argparse.Namespace) -> int:
    from kfp_tfjob.storage.store import Store
    from kfp_tfjob.uploader.folder import push

    store = Store(arguments.endpoint, arguments.region)
    address = S3Address.parse(arguments.address)
    push(
        store,
        arguments.folder,
        address,
        arguments.kind,
        arguments.run_id,
        arguments.attempt,
        workers=arguments.workers,
    )
    return 0


def _pull(arguments: argparse.Namespace) -> int:
    from kfp_tfjob.storage.store import Store
    from kfp_tfjob.uploader.folder import pull

    store = Store(arguments.endpoint, arguments.region)
    address = S3Address.parse(arguments.address)
    pull(store, address, arguments.folder, workers=arguments.workers)
    return 0


def _verify(arguments: argparse.Namespace) -> int:
    from kfp_tfjob.storage.layout import MANIFEST
    from kfp_tfjob.storage.store import Store
    from kfp_tfjob.uploader.folder import verify

    store = Store(arguments.endpoint, arguments.region)
    address = S3Address.parse(arguments.address)
    manifest = store.read_manifest(address / MANIFEST)
    DataError.raise_if(verify(store, address, manifest, arguments.workers))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m kfp_tfjob.uploader",
        description="Send, fetch and verify folders in S3.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--endpoint", default="", help="URL of the store; default: the Secret's")
    common.add_argument("--region", default="", help="region of the store; default: the Secret's")
    common.add_argument(
        "--workers",
        type=int,
        default=0,
        help="parallel transfers; default: 8, and up to 32 to send to a distant store",
    )

    def command(name: str, function, text: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, parents=[common], help=text, description=text)
        added.set_defaults(function=function)
        return added

    sidecar = command("watch", _watch, "mirror the output of the chief while it trains")
    sidecar.add_argument("folder", type=Path, help="OUTPUT_DIR of the chief")
    sidecar.add_argument("address", help="the run: s3://BUCKET/.../runs/RUN_ID")
    sidecar.add_argument(
        "--run-id",
        default=os.environ.get("RUN_ID", ""),
        help="default: RUN_ID, or the last part of the address",
    )
    sidecar.add_argument(
        "--attempt", default=os.environ.get("ATTEMPT", ""), help="default: ATTEMPT"
    )
    sidecar.add_argument(
        "--interval", type=float, default=1.0, help="seconds between two scans; default 1"
    )
    sidecar.add_argument(
        "--snapshots",
        type=float,
        default=30.0,
        help="seconds between two snapshots of a growing file, in addition to those before"
        " checkpoints; default 30",
    )
    sidecar.add_argument(
        "--grace",
        type=float,
        default=600.0,
        help="seconds to store the rest after SIGTERM; default 600; stop-within shortens it",
    )
    sender = command("push", _push, "send a folder and write its manifest last")
    sender.add_argument("folder", type=Path, help="folder; hidden, .tmp and .part files stay out")
    sender.add_argument("address", help="s3://BUCKET/PREFIX")
    sender.add_argument("--kind", required=True, help="manifest kind: dataset, code, model, ...")
    sender.add_argument("--run-id", default="", help="the run that writes it")
    sender.add_argument("--attempt", type=int, default=0, help="the attempt of that run")

    fetcher = command("pull", _pull, "fetch and verify the files of a manifest")
    fetcher.add_argument("address", help="s3://BUCKET/PREFIX, the directory of the manifest")
    fetcher.add_argument("folder", type=Path, help="target folder; its other files are kept")

    prover = command(
        "verify", _verify, "verify the objects of a manifest; exits with 3 if one differs"
    )
    prover.add_argument("address", help="s3://BUCKET/PREFIX, the directory of the manifest")
    return parser


def main() -> int:
    """Run one command and return its exit code."""
    arguments = _parser().parse_args()
    logging.basicConfig(level=logging.INFO, handlers=[log_to(sys.stdout)])
    logging.getLogger("botocore").setLevel(logging.WARNING)
    try:
        return arguments.function(arguments)
    except StepError as error:
        print(error, file=sys.stderr)
        return error.code


if __name__ == "__main__":
    sys.exit(main())
