"""S3 addresses, verified objects, manifests and the layout of a run: what every room stands on."""
