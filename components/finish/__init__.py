"""The exit task: runs on every end and says what happened."""
