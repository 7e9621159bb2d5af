"""Verdicts and published models: versions, champions, servable folders, mirrors elsewhere."""
