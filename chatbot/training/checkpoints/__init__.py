"""The checkpoints of an attempt: their content, how far the run had come, and the files on the disk."""
