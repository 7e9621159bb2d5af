"""What runs in the container `tensorflow` of a replica: the supervisor, the trainer, its models."""
