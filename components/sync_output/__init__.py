"""The step sync_output: verifies that the output of a run is in the store, object by object."""
