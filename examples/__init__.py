"""Examples: data for a first run, your own model, your own training programs."""
