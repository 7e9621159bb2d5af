"""Search hyperparameters with Optuna: several runs at once, and the best one through the gate.

    pip install optuna
    python -m examples.sweep train.yaml digits-sweep --trials 12 --at-once 2 --metric val_accuracy

train.yaml contains run parameters, as for `kfp-tfjob submit --params`; with `pod.all.queue` in it,
all runs wait in one queue of Kueue. Trials are compared by their validation rows and not evaluated.
At the end, a run with the best hyperparameters trains and goes through the gate.

If this program is killed, start it again. Optuna's file, digits-sweep.db, contains the
hyperparameters of each trial, and the back end does not take the name of a run twice. So a trial
that was running is followed further, and none trains twice.
"""

from __future__ import annotations

import argparse
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Any

import optuna
import yaml
from optuna.distributions import BaseDistribution, FloatDistribution
from optuna.trial import TrialState

from kfp_tfjob import Client
from kfp_tfjob.pipelines.kubeflow.errors import UnknownRunError
from kfp_tfjob.pipelines.kubeflow.following import Moment

# The keyword arguments of build_model to search.
SPACE: dict[str, BaseDistribution] = {
    "dropout": FloatDistribution(0, 0.5),
    "learning_rate": FloatDistribution(1e-4, 1e-2, log=True),
}


def run(name: str, parameters: dict[str, Any], pipeline: str) -> Moment:
    """Start a run, unless one has this name, and return its end."""
    client = Client()
    try:
        found = client.run(name)
    except UnknownRunError:
        found = client.submit(parameters, client.package(pipeline), name)
    *_, end = client.watch(found.run_id)
    return end


class Sweep:
    """The trials of a study; the names of its runs begin with its own."""

    def __init__(
        self, name: str, parameters: dict[str, Any], metric: str, trials: int, pipeline: str
    ) -> None:
        known = {"storage": f"sqlite:///{name}.db", "load_if_exists": True}
        self.study = optuna.create_study(study_name=name, direction="maximize", **known)
        self._name, self._parameters, self._metric = name, parameters, metric
        self._trials, self._pipeline, self._lock = trials, pipeline, Lock()
        self._left = deque(self.study.get_trials(states=(TrialState.RUNNING,)))
        for trial in [it for it in self._left if it.params.keys() != SPACE.keys()]:
            self.study.tell(trial.number, state=TrialState.FAIL)  # killed while it was made
            self._left.remove(trial)

    def work(self, _: int = 0) -> None:
        """Run one trial after another until none is left."""
        while trial := self._next():
            options = self._parameters.get("train_options", {}) | {"evaluate": False}
            given = self._with(trial.params) | {"train_options": options}
            end = run(f"{self._name}-{trial.number}", given, self._pipeline)
            value = end.progress.metrics.get(self._metric) if end.progress else None
            done = end.run.state == "succeeded" and value is not None
            with self._lock:
                self.study.tell(
                    trial.number,
                    value if done else None,
                    state=TrialState.COMPLETE if done else TrialState.FAIL,
                )
            print(f"trial {trial.number}: {trial.params} {self._metric} {value}", flush=True)

    def publish(self) -> None:
        """Train with the best hyperparameters, and let the gate decide."""
        if not self.study.get_trials(states=(TrialState.COMPLETE,)):
            raise SystemExit("no trial succeeded; `kfp-tfjob runs` lists why")
        end = run(f"{self._name}-best", self._with(self.study.best_params), self._pipeline)
        print(f"best: {self.study.best_params}: {end.run.verdict or end.run.state}")

    def _with(self, found: dict[str, Any]) -> dict[str, Any]:
        known = self._parameters.get("model_hyperparameters", {})
        return self._parameters | {"model_hyperparameters": known | found}

    def _next(self) -> Any:
        with self._lock:
            if self._left:
                return self._left.popleft()
            if len(self.study.trials) >= self._trials:
                return None
            return self.study.ask(SPACE)


def main() -> None:
    """Search, then publish."""
    parser = argparse.ArgumentParser(description="Search hyperparameters with Optuna")
    parser.add_argument("params", type=Path)
    parser.add_argument("name")
    parser.add_argument("--trials", type=int, default=12)
    parser.add_argument("--at-once", type=int, default=2)
    parser.add_argument("--metric", default="val_accuracy")
    parser.add_argument("--pipeline", default="")
    given = parser.parse_args()
    parameters = yaml.safe_load(given.params.read_text())
    sweep = Sweep(given.name, parameters, given.metric, given.trials, given.pipeline)
    with ThreadPoolExecutor(given.at_once) as pool:
        list(pool.map(sweep.work, range(given.at_once)))
    sweep.publish()


if __name__ == "__main__":
    main()
