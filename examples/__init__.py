"""Examples: data for a first run, a model of your own, training programs of your own."""
