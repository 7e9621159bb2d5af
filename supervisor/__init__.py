"""The first process of every replica: runs the command, and ends with 0 only when all is stored.

It runs in any image, around any command: standard library only, Python 3.8 or later, and no import
from another room. `pack.py` puts these files into the one file that a pod runs. What the supervisor
is told, what it leaves behind and its exit codes are in ARCHITECTURE.md.
"""
