"""The training step: one TFJob per attempt, watched until its output is verified or it fails."""
