"""Declares, parses and checks everything that a user may set."""
