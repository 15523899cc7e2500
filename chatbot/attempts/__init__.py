"""Reads and manages attempts. An attempt is a training run, stored in a folder of checkpoints/."""
