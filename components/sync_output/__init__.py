"""The step sync_output: proves that the output of a run is in the store, object by object."""
