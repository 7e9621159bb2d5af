"""The init container of a replica."""
