"""What runs in the container `tensorflow` of a replica: the trainer, its models."""
