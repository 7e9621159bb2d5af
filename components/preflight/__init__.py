"""The first step: everything that can be known to be wrong before it costs anything."""
