"""The measured claims of the README, each one command."""
