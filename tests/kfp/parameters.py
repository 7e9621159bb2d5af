"""The run parameters that the scenarios share: small, so that all pods fit on a small node."""

# `cpu` is a limit too, so less would make the start of TensorFlow the longest part of a run.
POD = {"all": {"cpu": "400m", "memory": "1Gi", "ephemeral_storage": "1Gi"}}
STEP_RESOURCES = ("all.cpu=50m", "evaluate.memory=2Gi", "publish.memory=2Gi")
LABEL = "digit"
# A training that is long enough to be disturbed, with checkpoints all the time.
LONG = {"train_epochs": 150, "train_options": {"checkpoint_seconds": 2}}
