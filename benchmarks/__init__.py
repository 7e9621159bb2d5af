"""The measurements in the README, one command each."""
