"""Defines the two images of the compiled pipeline, and the user its steps run as.

`kfp-tfjob compile --tools-image --trainer-image --run-as-user` compiles other values in. Not every
Kubeflow Pipelines back end accepts them as run parameters, and a run must not depend on a moving
tag.
"""

import os

VERSION = "0.2.0"
TOOLS_VARIABLE, TRAINER_VARIABLE = "KFP_TFJOB_TOOLS_IMAGE", "KFP_TFJOB_TRAINER_IMAGE"

# Every step but evaluate, the init container `setup` and the sidecar `uploader`.
TOOLS = os.environ.get(TOOLS_VARIABLE) or f"kfp-tfjob/tools:{VERSION}"
# The `tensorflow` container of a replica, and evaluate.
TRAINER = os.environ.get(TRAINER_VARIABLE) or f"kfp-tfjob/trainer:{VERSION}"

# The user id of every step's pod; `none` where the cluster assigns one itself.
RUN_AS_USER_VARIABLE = "KFP_TFJOB_RUN_AS_USER"
RUN_AS_USER = os.environ.get(RUN_AS_USER_VARIABLE) or "1000"
