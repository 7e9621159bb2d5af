"""Benchmarks: each command reproduces a figure of the README."""
