"""Finds what people wrote to similar questions, and ranks it. It needs no TensorFlow."""
