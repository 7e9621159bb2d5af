"""A first run on real data, and what a user's own model or program looks like."""
