"""The declarations of everything a user may set, and how it is parsed and checked."""
