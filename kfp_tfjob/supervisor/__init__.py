"""Runs the command of a replica as its first process; exits with 0 only when all is stored.

It works in any image and with any command: it needs only the standard library of Python 3.8 or
later, and imports no other package. `pack.py` packs these files into the one file that a pod runs.
docs/architecture.md describes its variables, its files and its exit codes.
"""
