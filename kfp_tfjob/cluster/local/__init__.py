"""Runs jobs as processes on this machine, from the same manifest as on a cluster."""
