"""The step prepare_data: turns the source into split TFRecord shards, schema and statistics."""
