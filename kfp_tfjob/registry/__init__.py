"""The published models: versions, champions, servable folders, and their mirrors elsewhere."""
