"""Keys of the Secret that are not the store's: the address of a webhook, and MLflow's server.

A local run reads them from variables of the same names. They have a module of their own, because
credentials.py imports botocore, which takes seconds.
"""

WEBHOOK_KEY = "KFP_TFJOB_WEBHOOK_URL"  # the URL to notify of a run's end
MLFLOW_KEY = "MLFLOW_TRACKING_URI"  # the address of MLflow's server; it enables MLflow
