"""Readers of files: each yields the columns of one format."""
