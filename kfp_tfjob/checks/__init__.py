"""Checks what a run needs of the cluster, before it starts."""
