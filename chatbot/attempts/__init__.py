"""All that knows a folder of checkpoints/: its files, settings and checkpoints, and the commands for attempts."""
