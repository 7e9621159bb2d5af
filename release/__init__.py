"""Makes a release: its version, its files in dist/, and their signatures. `make help` lists how."""
