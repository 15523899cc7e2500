"""From shards of ids to padded batches of a few static shapes."""
