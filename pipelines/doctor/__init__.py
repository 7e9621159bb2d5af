"""Checks from a laptop whether a cluster, a back end and a store are ready for runs."""
