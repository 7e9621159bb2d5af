"""The step prepare_data: CSV or Parquet to split TFRecord shards, schema and statistics."""
