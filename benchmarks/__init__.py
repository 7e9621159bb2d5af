"""Benchmarks: each command reproduces a figure of docs/measured.md."""
