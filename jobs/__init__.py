"""What a job is: its kind, names, labels and annotations, its status and what became of it."""
