"""Builds the images of the project: `make images`. Read build.py first."""
