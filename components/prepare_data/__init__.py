"""The step prepare_data: the source becomes split TFRecord shards, schema and statistics."""
