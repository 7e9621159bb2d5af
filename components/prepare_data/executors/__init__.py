"""Where the work of prepare_data runs: in threads, in processes, or on a Dask cluster."""
