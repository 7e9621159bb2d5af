"""Runs jobs on a Kubernetes cluster or as processes on this machine. It knows no step."""
