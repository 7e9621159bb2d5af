"""The pipeline on one machine: an S3 server of its own, processes in place of pods."""
