"""Selects the GPUs of a training run, assigns towers to devices, and detects GPU failures."""
