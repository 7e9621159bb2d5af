"""Options that no longer exist, with the remedy for each.

A schedule or a script may still send them. Without this table, the answer would be a similar key
that does something else. Called by `parse.py`.
"""

from __future__ import annotations

# The remedy by path: a parameter, or a parameter and its keys.
REMOVED: dict[str, str] = {
    "gate.report": "delete it; inspect predictions in a notebook, and measure which columns matter"
    " with scikit-learn's permutation_importance",
    "gate.relative_margin": "use mode non_inferior with a margin in units of the metric",
    "data_options.append": "delete it; prepare_data reads every file",
    "train_options.checkpoint_best": "delete it; train_options.early_stopping with"
    " restore_best_weights exports the best epoch, and a ModelCheckpoint callback stores it",
    "train_options.warm_spare": "delete it; a trainer that dies is restarted in its pod anyway",
    "train_options.run_deadline_seconds": "delete it; deadline_seconds limits each attempt, and"
    " max_attempts those that store no newer checkpoint",
    "data_options.contract.max_js": "limit the same columns with data_options.contract.max_psi",
    "data_options.tfrecord_features": "delete it; write the feature into one of the first 1,000"
    " records of the files",
    "data_options.workers": "name your Dask cluster's scheduler in data_options.dask",
}
# Kubeflow Pipelines makes the pods of steps, and some of its settings are constants of a pipeline.
_OWN_PIPELINE = "delete it, or use the step in a pipeline of your own with kfp's {}"
_OF_STEPS = {
    "affinity": "use node_selector and tolerations",
    "annotations": _OWN_PIPELINE.format("kubernetes.add_pod_annotation"),
    "deadline_seconds": _OWN_PIPELINE.format("kubernetes.set_timeout"),
    "env": _OWN_PIPELINE.format("set_env_variable or kubernetes.use_secret_as_env"),
    "ephemeral_storage": "delete it; use node_selector to choose nodes with enough disk",
    "image_pull_secret": "add it to the imagePullSecrets of the runs' service account",
    "labels": _OWN_PIPELINE.format("kubernetes.add_pod_label"),
    "pending_timeout_seconds": "delete it; `kfp-tfjob why` shows why a pod waits",
    "priority_class": "delete it; the pods have the default PriorityClass of the cluster",
    "run_as_user": "compile the pipeline with --run-as-user",
    "scheduler": "delete it; the pods have the default scheduler of the cluster",
    "service_account": "start the run with --service-account",
}
REMOVED |= {
    f"pod.{step}.{key}": fix for step in ("prepare", "evaluate") for key, fix in _OF_STEPS.items()
}
