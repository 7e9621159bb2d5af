"""The training in the container `tensorflow` of a replica: loop, data, checkpoints, models."""
