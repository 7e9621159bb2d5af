"""The exit task: runs however a run ends, and reports what happened."""
