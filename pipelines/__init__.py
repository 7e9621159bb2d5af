"""The pipeline, its command line and its run on one machine."""
