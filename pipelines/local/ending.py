"""Ends a local run: prints its last lines, and copies its results.

The embedded store stops with the run, so the last lines point to files on this machine.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kfp_tfjob import uploader
from kfp_tfjob.components import notify
from kfp_tfjob.components.finish import engine as finish
from kfp_tfjob.components.finish.page import describe
from kfp_tfjob.components.notify_end import tell_end
from kfp_tfjob.components.step import WHOLE_RUN, Step, keeps_result
from kfp_tfjob.components.summary import read_outcome, suspicious_columns
from kfp_tfjob.judging.formatting import number
from kfp_tfjob.options.metric_names import in_short
from kfp_tfjob.pipelines.local.home import LOG, Home
from kfp_tfjob.registry.outcome import Outcome
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.champion import Champion, read_champion
from kfp_tfjob.storage.documents import InvalidDocumentError
from kfp_tfjob.storage.errors import StepError
from kfp_tfjob.storage.escaping import code
from kfp_tfjob.storage.failure_record import Failure
from kfp_tfjob.storage.layout import FAILURE_JSON, FAILURE_PAGE, REPORT
from kfp_tfjob.storage.run_folder import newest_checkpoint

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
    "publish/publish_summary": "summary.md",  # in place of that of evaluate
    "finish/run_summary": "finish.md",
}
_OPTION = re.compile(r"\b(?:data_options|train_options|gate|pod)(?:\.\w+)+")


@dataclass(frozen=True)
class Ending:
    """One run's end, whose store stops with it if it is embedded."""

    step: Step
    model_name: str
    home: Home
    embedded: bool
    show: Callable[[str], None]

    def tell(self, code: int, stop_signal: int) -> int:
        """Explain how the run ended, and return the exit code for the command line."""
        self._copied(self._keep_reports)
        path = self._folder / FAILURE_JSON
        try:
            failure = Failure.from_bytes(path.read_bytes())
        except (OSError, InvalidDocumentError):  # there is none, or the disk was full
            failure = None
        if stop_signal:
            self._tell_stop()
            return 128 + stop_signal
        if failure:
            self.show(f"\n{failure.step} failed ({failure.verdict}): {failure.message}")
            if named := _OPTION.search(failure.fix):
                self.show(f"\nType --set '{named[0]}=VALUE' to set such an option.")
            if keeps_result(failure, self.step):
                self.show("\nThe run was complete before, and its results stay as they are.")
                path.unlink()
                return failure.code
            self.show(f"\ndetails    {self._copied(lambda: self._keep_failure(failure))}")
            self._notify(failure)
            return failure.code
        if code:
            said = (
                f"the pipeline exited with code {code}, and no step recorded why, for example"
                f" because memory ran out: see {self._log}"
            )
            self.show(f"\n{said}")
            self._notify(Failure(WHOLE_RUN, 1, "failed", said))
            return 1
        return self._tell_end()

    def _tell_stop(self) -> None:
        """Run the exit task, which kfp.local skips when it is stopped, and say how to continue."""
        try:
            ending = finish.run(self.step, self.model_name)
            newest = newest_checkpoint(self.step.store, self.step.run)
            is_trained = self.step.store.has(self.step.run.manifest)
        except StepError as error:
            self.show(f"cannot record the run's end: {error}")
            return
        if not (failure := ending.failure):
            self.show("stopped, but the run was already complete")
            return
        self._copied(lambda: self._keep_failure(failure, ending.markdown))
        saved = f"training is saved up to step {newest}" if newest else "no checkpoint is saved yet"
        saved = "training is complete" if is_trained else saved
        command = self.home.to_continue(self.step.run_id)
        self.show(f"stopped: {saved}; to continue: {command}")
        self._notify(failure)

    def _notify(self, failure: Failure) -> None:
        notice = notify.failure(self.step.run_id, failure, self.model_name)
        notify.notify(notice, self.step.store, self.step.whole_run)

    def _tell_end(self) -> int:
        ended = read_outcome(self.step)
        if (verdict := ended.verdict) is None:
            return self._tell_without_verdict(ended)
        champion = read_champion(self.step.store, self.step.layout, self.model_name)
        known = in_short(verdict.metrics)
        metrics = ", ".join(f"{name} {number(value)}" for name, value in known.items())
        self.show(f"\ntest       {metrics}")
        self.show(f"verdict    {'blessed' if verdict.blessed else 'not blessed'}:")
        for reason in verdict.reasons:
            self.show(f"           {reason}")
        if suspicious := suspicious_columns(self.step.store, verdict.dataset_uri):
            self.show(f"           SUSPICIOUS: {suspicious}")
        if ended.lost:
            self.show(f"           not published: {ended.lost.message}")
        self.show(f"champion   {champion.version_uri if champion else 'none'}")
        if champion:
            self.show(f"model      {self._copied(lambda: self._keep_model(champion))}")
        if self.embedded:
            self.show(f"output     {self._copied(self._keep_output)}")
        self.show(f"report     {self._folder / REPORT}")
        tell_end(self.step, self.model_name)
        return 0

    def _tell_without_verdict(self, ended: Outcome) -> int:
        if same := ended.earlier:
            champion = read_champion(self.step.store, self.step.layout, self.model_name)
            self.show(
                f"\nNothing has changed since run {same.run_id}: the model was not trained again"
            )
            self.show(f"champion   {champion.version_uri if champion else 'none'}")
        elif why := ended.why_not_evaluated:
            self.show(f"\nThe output is stored and verified. Not evaluated: {why}")
            if self.embedded:
                self.show(f"output     {self._copied(self._keep_output)}")
        else:
            self.show(f"\nno step failed, but there is no verdict: see {self._log}")
            return 1
        tell_end(self.step, self.model_name)
        return 0

    def _copied(self, copy: Callable[[], object]) -> str:
        """Return the path of a copy, or why there is none; the store has the original."""
        try:
            return str(copy())
        except (StepError, OSError) as error:
            return f"no copy on this machine: {error}"

    def _keep_model(self, champion: Champion) -> Path:
        """Fetch the champion, verified by its manifest; files that exist already stay."""
        endpoint = "" if self.embedded else self.step.store.endpoint
        models = self.home.models(self.model_name, endpoint, self.step.layout.root)
        folder = models / str(champion.version)
        address = S3Address.parse(champion.version_uri, "version_uri")
        uploader.pull(self.step.store, address, folder)
        return folder

    def _keep_output(self) -> Path:
        """Fetch the output of training without its checkpoints."""
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

    def _keep_reports(self) -> None:
        """Copy the reports of the steps to the run's folder, with suffixes for a browser."""
        for folder in sorted(self._folder.glob("outputs/tfjob-training-*")):
            for source, name in _REPORTS.items():
                if (folder / source).is_file():
                    shutil.copyfile(folder / source, self._folder / name)

    def _keep_failure(self, failure: Failure, markdown: str = "") -> Path:
        """Write failure.md to the run's folder: the exit task's report, or at least the cause."""
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
