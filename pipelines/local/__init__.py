"""Runs the pipeline on one machine, with its own S3 server and with processes instead of pods."""
