"""Ends a local run: prints its last lines, and copies its results.

The embedded store stops with the run, so the last lines point to files on this machine. Called by
`run.py`.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kfp_tfjob import uploader
from kfp_tfjob.common.errors import StepError
from kfp_tfjob.common.escaping import code
from kfp_tfjob.components import notify
from kfp_tfjob.components.finish import engine as finish
from kfp_tfjob.components.finish.run_report import describe
from kfp_tfjob.components.notify_end import send_end_notice
from kfp_tfjob.components.step import WHOLE_RUN, Step, keeps_result
from kfp_tfjob.components.summary import read_outcome, suspicious_columns
from kfp_tfjob.jobs.failure_record import Failure
from kfp_tfjob.judging.formatting import number
from kfp_tfjob.options.metric_names import in_short
from kfp_tfjob.registry.champion import Champion, read_champion
from kfp_tfjob.registry.outcome import Outcome
from kfp_tfjob.registry.run_folder import newest_checkpoint
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.documents import InvalidDocumentError
from kfp_tfjob.storage.layout import FAILURE_JSON, FAILURE_PAGE, REPORT

from .home import LOG, Home

# The artifact of a step, which kfp.local writes without a suffix, and the name of its copy.
_REPORTS = {
    "preflight/parameters": "parameters.md",
    "prepare-data/data_report": "data.html",
    "launch-tfjob/training_curves": "training.html",
    "launch-tfjob/training_job": "tfjob.html",
    "sync-output/stored_output": "output.md",
    "evaluate/evaluation_report": REPORT,
    "evaluate/verdict_summary": "summary.md",
    "publish/model_card": "model-card.md",
    "publish/publish_summary": "summary.md",  # replaces evaluate's
    "finish/run_summary": "finish.md",
}
_OPTION = re.compile(r"\b(?:data_options|train_options|gate|pod)(?:\.\w+)+")
_SETTING = re.compile(rf"{_OPTION.pattern}=\w+(?![\w.])")  # with a value that is one word


@dataclass(frozen=True)
class Ending:
    """The end of a run.

    Attributes:
        step: The step as which this process reads the store.
        model_name: The run parameter.
        home: The folder of local runs.
        embedded: Whether the store is the embedded one, which stops with the run.
        show: Prints a line.
    """

    step: Step
    model_name: str
    home: Home
    embedded: bool
    show: Callable[[str], None]

    def tell(self, code: int, stop_signal: int) -> int:
        """Explain how the run ended, and return the exit code for the command line.

        Args:
            code: The exit code of the pipeline's process.
            stop_signal: The signal that stopped the run; 0 without one.
        """
        self._copy(self._copy_reports)
        path = self._folder / FAILURE_JSON
        try:
            failure = Failure.from_bytes(path.read_bytes())
        except (OSError, InvalidDocumentError):  # there is none, or the disk was full
            failure = None
        if stop_signal:
            self._finish_stopped()
            return 128 + stop_signal
        if failure:
            self.show(f"\n{failure.step} failed ({failure.verdict}): {failure.message}")
            if setting := _SETTING.search(failure.fix):
                self.show(f"\nType --set '{setting[0]}' to set such an option.")
            elif option := _OPTION.search(failure.fix):
                self.show(f"\nType --set '{option[0]}=VALUE' to set such an option.")
            if keeps_result(failure, self.step):
                self.show("\nThe run was complete before, and its results stay as they are.")
                path.unlink()
            else:
                self.show(f"\ndetails    {self._copy(lambda: self._write_failure(failure))}")
                self._notify(failure)
            self.show(f"docs       {failure.docs_address}")
            return failure.code
        if code:
            message = (
                f"the pipeline exited with code {code}, and no step recorded why, for example"
                f" because memory ran out: see {self._log}"
            )
            self.show(f"\n{message}")
            failure = Failure(WHOLE_RUN, 1, "failed", message)
            self._notify(failure)
            self.show(f"docs       {failure.docs_address}")
            return 1
        return self._show_success()

    def _finish_stopped(self) -> None:
        """Run the exit task, which kfp.local skips if stopped, and show how to continue the run."""
        try:
            ending = finish.run(self.step, self.model_name)
            newest = newest_checkpoint(self.step.store, self.step.run)
            is_trained = self.step.store.has(self.step.run.manifest)
        except StepError as error:
            # The run was stopped by its user, who can still continue it.
            self.show(f"cannot record the run's end: {error}")
            return
        if not (failure := ending.failure):
            self.show("stopped, but the run was already complete")
            return
        self._copy(lambda: self._write_failure(failure, ending.markdown))
        saved = f"training is saved up to step {newest}" if newest else "no checkpoint is saved yet"
        saved = "training is complete" if is_trained else saved
        command = self.home.to_continue(self.step.run_id)
        self.show(f"stopped: {saved}; to continue: {command}")
        self._notify(failure)

    def _notify(self, failure: Failure) -> None:
        notice = notify.failure(self.step.run_id, failure, self.model_name)
        notify.notify(notice, self.step.store, self.step.whole_run)

    def _show_success(self) -> int:
        """Show the result of a run without a failure, and return the exit code."""
        outcome = read_outcome(self.step)
        if (verdict := outcome.verdict) is None:
            return self._show_without_verdict(outcome)
        champion = read_champion(self.step.store, self.step.layout, self.model_name)
        metrics = in_short(verdict.metrics)
        listed = ", ".join(f"{name} {number(value)}" for name, value in metrics.items())
        self.show(f"\ntest       {listed}")
        self.show(f"verdict    {'blessed' if verdict.blessed else 'not blessed'}:")
        for reason in verdict.reasons:
            self.show(f"           {reason}")
        if suspicious := suspicious_columns(self.step.store, verdict.dataset_uri):
            self.show(f"           SUSPICIOUS: {suspicious}")
        if outcome.lost:
            self.show(f"           not published: {outcome.lost.message}")
        self.show(f"champion   {champion.version_uri if champion else 'none'}")
        if champion:
            if champion.run_id != self.step.run_id:
                self.show(f"           of run {champion.run_id}, not of this run")
            self.show(f"model      {self._copy(lambda: self._copy_model(champion))}")
        if self.embedded:
            self.show(f"output     {self._copy(self._copy_output)}")
        self.show(f"report     {self._folder / REPORT}")
        send_end_notice(self.step, self.model_name)
        return 0

    def _show_without_verdict(self, outcome: Outcome) -> int:
        if earlier := outcome.earlier:
            champion = read_champion(self.step.store, self.step.layout, self.model_name)
            self.show(
                f"\nNothing has changed since run {earlier.run_id}: the model was not trained again"
            )
            self.show(f"champion   {champion.version_uri if champion else 'none'}")
        elif reason := outcome.why_not_evaluated:
            self.show(f"\nThe output is stored and verified. Not evaluated: {reason}")
            if self.embedded:
                self.show(f"output     {self._copy(self._copy_output)}")
        else:
            self.show(f"\nno step failed, but there is no verdict: see {self._log}")
            return 1
        send_end_notice(self.step, self.model_name)
        return 0

    def _copy(self, copy: Callable[[], object]) -> str:
        """Return the path of a copy, or a clause with the reason why it could not be made.

        That is no failure of the run, because the store has the original.
        """
        try:
            return str(copy())
        except (StepError, OSError) as error:
            return f"no copy on this machine: {error}"

    def _copy_model(self, champion: Champion) -> Path:
        """Fetch the champion, verified by its manifest; files that already exist are kept."""
        endpoint = "" if self.embedded else self.step.store.endpoint
        models = self.home.models(self.model_name, endpoint, self.step.layout.root)
        folder = models / str(champion.version)
        address = S3Address.parse(champion.version_uri, "version_uri")
        uploader.pull(self.step.store, address, folder)
        return folder

    def _copy_output(self) -> Path:
        """Fetch the output of training without its checkpoints, and return its folder."""
        output, checkpoints = (
            f"{address.key[len(self.step.run.base.key) + 1 :]}/"
            for address in (self.step.run.output, self.step.run.checkpoints)
        )
        uploader.pull(
            self.step.store,
            self.step.run.base,
            self._folder,
            lambda key: key.startswith(output) and not key.startswith(checkpoints),
        )
        return self._folder / output

    def _copy_reports(self) -> None:
        """Copy the steps' reports to the run's folder, with suffixes for a browser."""
        for folder in sorted(self._folder.glob("outputs/tfjob-training-*")):
            for source, name in _REPORTS.items():
                if (folder / source).is_file():
                    shutil.copyfile(folder / source, self._folder / name)

    def _write_failure(self, failure: Failure, markdown: str = "") -> Path:
        """Write failure.md to the run's folder: the exit task's report, or at least the cause.

        Args:
            failure: The failure.
            markdown: The exit task's report; empty for the one that it stored here.
        """
        path = self._folder / FAILURE_PAGE
        report = self._folder / _REPORTS["finish/run_summary"]
        if not markdown and report.exists():
            markdown = report.read_text()
        cause = "\n".join(describe(failure))
        if cause not in markdown:  # the exit task could not read the store, or is older
            markdown = f"# {code(failure.step)} failed\n\n{cause}\n"
        path.write_text(markdown)
        return path

    @property
    def _folder(self) -> Path:
        return self.home.run(self.step.run_id)

    @property
    def _log(self) -> Path:
        return self._folder / LOG
