"""Evaluates models: metrics with intervals, comparison with the champion, slices, the gate."""
