"""The training program in a replica's container `tensorflow`: loop, data, checkpoints, models."""
