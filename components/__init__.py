"""The pipeline steps, one folder each with the KFP interface (component.py) and the engine."""

# Their names, in the order of the pipeline.
STEPS = (
    "preflight",
    "prepare_data",
    "launch_tfjob",
    "sync_output",
    "evaluate",
    "publish",
    "finish",
)
