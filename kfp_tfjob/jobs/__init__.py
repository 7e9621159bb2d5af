"""Jobs: their kinds, names, labels, annotations, status and verdicts."""
