"""Runs the pipeline on this machine, and ends its processes.

1. Lock the folder; end processes that a killed run has left.
2. Start the watchdog, which ends everything if this process is killed.
3. Start the embedded S3 server, or use the given endpoint.
4. Run the pipeline in a separate process and show the lines of its steps.
5. Restart the S3 server if it dies; on a signal, end the pipeline and run `finish`.
6. Print the decision, or the message and exit code of the failed step.

Called by `kfp-tfjob run`.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import IO

from kfp_tfjob.cluster import backend
from kfp_tfjob.cluster.local import backend as local_backend
from kfp_tfjob.common import files, progress
from kfp_tfjob.common.errors import ConfigurationError, Problem, StoreUnavailableError
from kfp_tfjob.components.step import FAILURE_FILE, RUN_ID, Step
from kfp_tfjob.jobs.log_masking import hide
from kfp_tfjob.options.address_fields import Tick
from kfp_tfjob.options.parameter_masking import masked, secrets_in
from kfp_tfjob.options.parameters import RunParameters
from kfp_tfjob.storage.credentials import MOUNT_VARIABLE, SecretVolume
from kfp_tfjob.storage.layout import FAILURE_JSON, FAILURE_PAGE, Layout
from kfp_tfjob.storage.retry import Patience
from kfp_tfjob.storage.store import Store

from . import processes
from .ending import Ending
from .home import BUCKET, LOG, PARAMETERS, REPORTS, RUN_LOG, TICK, Home
from .output import PlainSteps, Relay, Steps
from .pipeline_log import PipelineLog
from .s3_server import Server, pass_no_proxy, try_exclusive_lock

log = logging.getLogger(__name__)
_EMBEDDED_SECRET = ("s3", "secret")  # the end of its path, in this home or before it was moved

JOB = "job"  # in the run's folder: the folder of its jobs
_STOP_GRACE = 15.0  # seconds for the supervisors to save after Ctrl-C
# Variables of the user's shell that name another store than the embedded one.
_OTHER_STORE = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_REGION", "AWS_DEFAULT_REGION")
_PATIENCE = Patience(10, silence=15)  # for this process's own requests to the store
_SERVER_STARTS = 5  # a server that dies more often has a permanent problem
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run(
    values: RunParameters,
    home: Home,
    run_id: str,
    embedded: bool,
    show: Callable[[str], None],
    tick: Tick,
    live: bool = False,
) -> int:
    """Run the pipeline and return the exit code for the command line.

    Args:
        values: The run parameters, checked.
        home: The folder of local runs.
        run_id: The run; an id that exists continues that run.
        embedded: Whether to use the embedded store.
        show: Prints a line.
        tick: The time for `{date}` and `{hour}`.
        live: Whether to show the steps as live lines on the terminal, and `show`'s lines in a file.

    Raises:
        StepError: The folder is in use or unusable, its disk is full, or the S3 server does not
            start.
    """
    with home.translate_errors(), ExitStack() as stack:
        stack.callback(os.umask, os.umask(0o077))  # only the owner can read a run's files
        home.make()
        stack.enter_context(only_run(home))
        token = _new_token(home)
        stop_signal = stack.enter_context(_StopSignal())
        pass_no_proxy()  # replicas find each other on this machine
        environment = _environment(home, run_id, token, str(values["storage_secret"]))
        folder = home.run(run_id)
        show = _while_read(show)
        steps: Steps = PlainSteps(show)
        if live:
            steps, show = _live_steps(stack, folder, environment)
        show(f"run {run_id}; logs and reports in {folder}")
        if live:
            show(f"log        {folder / RUN_LOG}")
        server, root = None, Layout.parse(values["output_uri"]).root
        if embedded and root.bucket != BUCKET:
            note = f"note       {root} is in the embedded store; for your own, pass --endpoint URL"
            show(note)
            stack.callback(show, note)  # the last lines name addresses there
        _forget_secrets(home, str(values["storage_secret"]))
        if embedded:
            # A replica reads these before the Secret: in a pod, only the form sets them.
            environment = {
                name: setting for name, setting in environment.items() if name not in _OTHER_STORE
            }
            server = _RestartedServer(home, show)
            stack.callback(lambda: server.current.stop())
            environment["AWS_ENDPOINT_URL"] = server.current.endpoint
            (home.secrets / str(values["storage_secret"])).symlink_to(server.current.secret)
            try:
                server.current.store(_PATIENCE).make_bucket(root.bucket)
            except StoreUnavailableError:
                if home.is_full():
                    raise home.full_while(run_id) from None
                raise
        # If this process is killed, training is saved to the store before the store ends.
        stack.enter_context(_watchdog(token, server.current.users if server else None))
        endpoint = server.current.endpoint if server else str(values["storage_endpoint"])
        step = _finish_step(values, endpoint, run_id, home)
        stack.callback(lambda: processes.end(token, 0.0))
        parameters_file = folder / PARAMETERS
        earlier = parameters_file.read_bytes() if parameters_file.exists() else b""
        code = _run_pipeline(values, tick, folder, environment, server, stop_signal, home, steps)
        preflight = PipelineLog.read(folder / LOG).steps.get("preflight")
        if earlier and not (preflight and preflight.succeeded):
            files.write(parameters_file, earlier)  # preflight did not accept the new ones
        if code is None:
            processes.end(token, _STOP_GRACE)
            raise home.full_while(run_id)
        if stop_signal.number:
            show(f"stopping on {signal.Signals(stop_signal.number).name}: training saves its state")
            processes.end(token, _STOP_GRACE)
        if not code:  # a store that is away for a moment must not hide the published version
            step = replace(step, store=step.store.with_patience(Patience().seconds))
        ending = Ending(step, str(values["model_name"]), home, embedded, show)
        code = ending.tell(code, stop_signal.number)
        if live and code:
            show(f"log        {folder / RUN_LOG}")
        return code


def _live_steps(
    stack: ExitStack, folder: Path, environment: dict[str, str]
) -> tuple[Steps, Callable[[str], None]]:
    """Return the live lines of a run, and a function that prints a line and writes it to the log.

    Args:
        stack: Closes the log.
        folder: The run's folder.
        environment: The environment of the run's processes, to which their file for reports is
            added.
    """
    from ..live_lines import LiveLines  # only a terminal needs it
    from .live_steps import LiveSteps

    folder.mkdir(parents=True, exist_ok=True)
    live = LiveLines(folder / RUN_LOG)
    stack.callback(live.close)
    environment[progress.FILE] = str(folder / REPORTS)
    return LiveSteps(live, folder / REPORTS, folder / JOB), _while_read(live.show)


def _while_read(show: Callable[[str], None]) -> Callable[[str], None]:
    """Return a function that prints a line as long as something reads standard output.

    Ctrl-C also ends `tee`, and a terminal may be closed. The run then still has to save and to
    record how it ended.
    """

    def print_line(text: str) -> None:
        try:
            show(text)
        except OSError:
            # Python flushes the lost line once more when it ends, and would exit with code 120.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    return print_line


def _run_pipeline(
    values: RunParameters,
    tick: Tick,
    folder: Path,
    environment: Mapping[str, str],
    server: _RestartedServer | None,
    stop_signal: _StopSignal,
    home: Home,
    steps: Steps,
) -> int | None:
    """Return the pipeline's exit code, after its end or a signal; None if the disk is full."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in (FAILURE_JSON, FAILURE_PAGE):  # from the continued run
        (folder / name).unlink(missing_ok=True)
    files.write(folder / PARAMETERS, json.dumps(masked(values), indent=1) + "\n")
    files.write(folder / TICK, f"{tick}\n")
    hide(secrets_in(values))
    command = [
        sys.executable,
        "-m",
        "kfp_tfjob.pipelines.local.pipeline_process",
        str(folder / "outputs"),
        str(tick),
    ]
    pipeline = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=environment,
        start_new_session=True,  # Ctrl-C is for this process, which ends the others in order
    )
    assert pipeline.stdin
    with suppress(BrokenPipeError), pipeline.stdin as pipe:
        json.dump(dict(values), pipe)
    relay = Relay(pipeline, folder / LOG, steps)
    full = False
    with steps:
        relay.start()
        while pipeline.poll() is None and not stop_signal.number and not full:
            if server:
                server.keep_running()
            steps.refresh()
            stop_signal.wait(0.3)  # a person notices no shorter delay after Ctrl-C
            full = home.is_full() or relay.is_full
        # A disk may fill at the very end, after the last step.
        ended = pipeline.poll() is not None and not stop_signal.number
        if ended:
            relay.join()
        else:
            pipeline.kill()  # first, so that no new step starts
            pipeline.wait()
    return None if full and not (ended or stop_signal.number) else pipeline.returncode


def _finish_step(values: RunParameters, endpoint: str, run_id: str, home: Home) -> Step:
    """Return the step as which this process reads results from the store."""
    store = Store(
        endpoint,
        str(values["storage_region"]),
        secret=SecretVolume(home.secrets / str(values["storage_secret"])),
        patience=_PATIENCE,
    )
    return Step("finish", run_id, Layout.parse(values["output_uri"]), store)


def _environment(home: Home, run_id: str, token: str, secret: str) -> dict[str, str]:
    """Return the environment of each of the run's processes."""
    return os.environ | {
        processes.TOKEN: token,
        RUN_ID: run_id,
        FAILURE_FILE: str(home.run(run_id) / FAILURE_JSON),
        MOUNT_VARIABLE: str(home.secrets / secret),
        backend.BACKEND_VARIABLE: "local",
        local_backend.SECRETS: str(home.secrets),
        local_backend.FOLDER: str(home.run(run_id) / JOB),
        # A step runs python3, which must be this interpreter.
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
        "PYTHONUNBUFFERED": "1",  # steps print as they go
        "PYTHONSAFEPATH": "1",  # `python -m` would import types.py of the user's folder as Python's
        "TF_CPP_MIN_LOG_LEVEL": "3",  # hides the long messages of TensorFlow about missing GPUs
    }


def _forget_secrets(home: Home, store_secret: str) -> None:
    """Remove earlier runs' links to the embedded store's keys, which no other store accepts.

    Anything else is a Secret that the user has put there for `pod.env`.

    Args:
        home: The folder of local runs.
        store_secret: The name of the store's Secret in this run.
    """
    for link in home.secrets.iterdir():
        if not link.is_symlink():
            continue
        if link.name == store_secret or link.readlink().parts[-2:] == _EMBEDDED_SECRET:
            link.unlink()


def _new_token(home: Home) -> str:
    """Return a new token for this run, after ending the processes of a killed run."""
    path, folder = home.folder / "token", str(home.folder.stat().st_ino)
    # A copy of the folder has the token too, but its processes belong to the original's run.
    old_token, _, owner = (path.read_text() if path.exists() else "").partition(" ")
    if old_token and owner == folder and (killed := processes.end(old_token, 0.0)):
        log.warning("ended %d processes left over from an earlier run", killed)
    token = secrets.token_hex(16)
    path.write_text(f"{token} {folder}")
    return token


@contextmanager
def only_run(home: Home) -> Iterator[None]:
    """Lock the folder, so that two runs do not share an S3 server and its data."""
    with open(home.folder / "lock", "w") as file:
        for _ in range(20):  # one second: `is_held` of another command has it for a moment
            if try_exclusive_lock(file):
                break
            time.sleep(0.05)
        else:
            raise ConfigurationError(
                Problem(
                    "another run is using this folder",
                    received=str(home.folder),
                    expected="one run per folder at a time",
                    fix="wait for it to end, or choose another folder with --home",
                    name="home-in-use",
                )
            )
        yield


class _StopSignal:
    """The first signal that asks this process to stop; a second signal exits at once."""

    def __init__(self) -> None:
        self.number = 0

    def wait(self, seconds: float) -> None:
        """Wait for some seconds, or not at all if a signal has arrived.

        The handler runs in the thread that waits here. With a lock, such as an Event's, it could
        wait for itself indefinitely.
        """
        if not self.number:
            time.sleep(seconds)

    def _handle(self, number: int, _frame: object) -> None:
        if self.number:
            os._exit(128 + number)  # the watchdog ends the other processes
        self.number = number

    def __enter__(self) -> _StopSignal:
        self._replaced = {
            number: signal.signal(number, self._handle)
            for number in _SIGNALS
            if (number, signal.getsignal(number)) != (signal.SIGHUP, signal.SIG_IGN)  # of nohup
        }
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._replaced.items():
            signal.signal(number, handler)


@contextmanager
def _watchdog(token: str, users: IO[str] | None) -> Iterator[None]:
    """Run a process that ends all processes with `token` if this process dies.

    Args:
        token: The run's token.
        users: The lock of the embedded server's users; None without one. The watchdog holds it too,
            so that the server runs until training is saved.
    """
    process = subprocess.Popen(
        [sys.executable, "-Pm", "kfp_tfjob.pipelines.local.processes", token],
        stdin=subprocess.PIPE,
        start_new_session=True,
        pass_fds=[users.fileno()] if users else (),
    )
    try:
        yield
    finally:
        assert process.stdin
        process.stdin.close()
        process.wait()  # it ends processes that are still running


class _RestartedServer:
    """The S3 server of a run, which is restarted if it dies, because its data is on disk.

    Attributes:
        current: The server that was started last.
    """

    def __init__(self, home: Home, show: Callable[[str], None]) -> None:
        self.current, self._show, self._starts = Server.start(home.s3), show, 1

    def keep_running(self) -> None:
        """Start the server again if it has died."""
        if self._starts < _SERVER_STARTS and self.current.is_gone:
            self._show("the S3 server is gone; restarting it")
            self._starts += 1
            self.current = Server.start(self.current.folder)
