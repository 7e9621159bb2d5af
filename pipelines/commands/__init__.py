"""The commands of kfp-tfjob, one file each."""
