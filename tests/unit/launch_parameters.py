"""The run parameters of the two golden jobs."""

from typing import Any

from kfp_tfjob.jobs.job_identity import Identity

RUN_ID = "0b6c7f52-7a0e-4f0c-9a51-3f0f5f6c2d11"
DEFAULTS: dict[str, Any] = {
    "output_uri": "s3://kfp-tfjob",
    "storage_endpoint": "",
    "storage_region": "",
    "storage_secret": "objstore-cred",
    "dataset_uri": "s3://kfp-tfjob/datasets/5f3a",
    "model_name": "digits",
    "model_entry": "kfp_tfjob.trainer.models:mlp",
    "code_uri": "",
    "model_hyperparameters": {},
    "train_workers": 1.0,
    "train_gpus": 0.0,
    "train_epochs": 20.0,
    "train_batch_size": 64.0,
    "train_image": "kfp-tfjob/trainer:0.1.0",
    "tools_image": "kfp-tfjob/tools:0.1.0",
    "train_options": {},
    "pod": {},
}
EVERYTHING: dict[str, Any] = {
    "output_uri": "s3://models/team/a",
    "storage_endpoint": "https://s3.example.com:9000",
    "storage_region": "eu-central-1",
    "storage_secret": "team-a-store",
    "dataset_uri": "s3://models/team/a/datasets/5f3a",
    "model_name": "Churn_Model.v2",
    "model_entry": "churn:build_model",
    "code_uri": f"s3://models/team/a/runs/{RUN_ID}/code",
    "model_hyperparameters": {"units": [64.0, 32.0], "rate": 0.001, "text": "a $(RUN_ID) é"},
    "train_workers": 3,
    "train_gpus": 2,
    "train_epochs": 5,
    "train_batch_size": 512,
    "train_image": "registry.example.com/team/own:7",
    "tools_image": "kfp-tfjob/tools:0.1.0",
    "train_options": {
        "seed": 7.0,
        "class_weight": {"yes": 3, "no": 1},
        "early_stopping": {"monitor": "val_loss", "patience": 3.0, "min_delta": 0.01},
        "reduce_lr_on_plateau": {"patience": 1, "factor": 0.5},
        "mixed_precision": "mixed_bfloat16",
        "checkpoint_seconds": 300,
        "micro_batches": 4.0,
        "sync_batch_norm": True,
        "jit_compile": True,
        "command": ["python3", "$(JOB_DIR)/code/train.py", "--out", "$(OUTPUT_DIR)"],
        "deadline_seconds": 86400,
        "start_timeout_seconds": 600,
        "store_deadline_seconds": 1800,
        "max_attempts": 5,
        "backoff_seconds": 30,
        "ttl_seconds": 3600,
    },
    "pod": {
        "all": {
            "cpu": 8,
            "memory": "64Gi",
            "gpu_resource": "nvidia.com/mig-1g.5gb",
            "ephemeral_storage": "100Gi",
            "shared_memory": "8Gi",
            "resources": {"vpc.amazonaws.com/efa": 4.0, "hugepages-2Mi": "5120Mi"},
            "node_selector": {"node.kubernetes.io/instance-type": "p4d.24xlarge"},
            "tolerations": [
                {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
                {
                    "key": "spot",
                    "operator": "Equal",
                    "value": "true",
                    "effect": "NoExecute",
                    "tolerationSeconds": 60,
                },
            ],
            "affinity": {
                "podAffinity": {
                    "preferredDuringSchedulingIgnoredDuringExecution": [
                        {
                            "weight": 100,
                            "podAffinityTerm": {
                                "topologyKey": "topology.kubernetes.io/zone",
                                "labelSelector": {"matchLabels": {"team": "a"}},
                            },
                        }
                    ]
                }
            },
            "env": {
                "NCCL_DEBUG": "INFO",
                "LEVEL": 1,
                "HUB_TOKEN": {"secret": "hub", "key": "token"},
            },
            "volumes": [
                {"claim": "cache", "path": "/cache"},
                {"claim": "reference", "path": "/reference/", "read_only": True},
                {"secret_name": "gcp", "path": "/gcp", "read_only": True},
                {"config_map": "topology", "path": "/topology"},
            ],
            "priority_class": "training",
            "scheduler": "volcano",
            "service_account": "trainer",
            "image_pull_secret": "registry",
            "annotations": {"example.com/cost-centre": "17"},
            "labels": {"team": "a"},
            "run_as_user": 2000,
            "grace_seconds": 300,
            "queue": "gpu-queue",
        },
        "chief": {"memory": "96Gi", "output_claim": "chief-output", "grace_seconds": 1200},
        "worker": {"env": {"LEVEL": "2"}, "labels": {"tier": "worker"}},
        "ps": {"replicas": 2, "cpu": 2, "memory": "8Gi"},
        "evaluator": {"replicas": 1, "gpus": 1},
    },
}
OWNER = {
    "apiVersion": "argoproj.io/v1alpha1",
    "kind": "Workflow",
    "name": "tfjob-training-x7k2p",
    "uid": "6a1f3c1e-6f0d-4e57-8d7c-3d3a8a2a5b10",
    "controller": False,
    "blockOwnerDeletion": False,
}
JOBS = {
    "tfjob-default": (DEFAULTS, Identity(RUN_ID, 1)),
    "tfjob-everything": (EVERYTHING, Identity(RUN_ID, 12, namespace="team-a", owner=OWNER)),
}
