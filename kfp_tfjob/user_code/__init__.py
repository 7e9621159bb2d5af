"""Reads, copies and calls the user's own Python code."""
