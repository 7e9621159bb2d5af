"""S3 storage: addresses, verified objects, manifests and the layout of a run."""
