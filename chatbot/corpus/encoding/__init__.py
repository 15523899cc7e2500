"""From pairs of text to shards of ids on disk, and the vocabulary that maps tokens to ids."""
