"""The two images the compiled pipeline names.

`kfp-tfjob compile --tools-image --trainer-image` bakes others in: a step's image cannot be a run
parameter on every Kubeflow Pipelines back end, and a run must not depend on a moving tag.
"""

import os

VERSION = "0.1.0"
TOOLS_VARIABLE, TRAINER_VARIABLE = "KFP_TFJOB_TOOLS_IMAGE", "KFP_TFJOB_TRAINER_IMAGE"

# Every step but evaluate, the init container `setup` and the sidecar `uploader`.
TOOLS = os.environ.get(TOOLS_VARIABLE) or f"kfp-tfjob/tools:{VERSION}"
# The `tensorflow` container of a replica, and evaluate.
TRAINER = os.environ.get(TRAINER_VARIABLE) or f"kfp-tfjob/trainer:{VERSION}"
