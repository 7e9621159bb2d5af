"""Runs jobs on Kubernetes or as processes on this machine. It does not depend on any step."""
