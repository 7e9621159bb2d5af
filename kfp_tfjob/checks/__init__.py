"""Checks what a run needs from the cluster, before it starts."""
