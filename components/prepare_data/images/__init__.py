"""Images in folders of classes, as a source of prepare_data."""
