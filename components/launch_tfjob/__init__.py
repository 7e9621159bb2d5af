"""The step that trains: one TFJob per attempt, watched until it is proven or explained."""
