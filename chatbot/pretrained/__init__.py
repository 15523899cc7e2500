"""Pretrained models: their settings, tokens and weights, in and out."""
