"""Converts a training job that a team already has into run parameters.

A job manifest says much that a run decides itself, such as restarts, and some things that no run
can do. So the result is a file with a comment for each part that is not carried over: why, and
what takes its place. A job that a run cannot train in the same way is refused.
"""
