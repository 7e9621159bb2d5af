"""Where the work of prepare_data runs: in this process, in several, or on a Dask cluster."""
