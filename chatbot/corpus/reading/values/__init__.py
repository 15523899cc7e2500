"""Nested values: JSON, YAML and Parquet, with the shapes of conversations and records in them."""
