"""Jobs: their kinds, names, labels, annotations, status, verdicts and failure records."""
