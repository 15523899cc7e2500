"""Garbage collection of a process with models."""

import gc


def leave_out_of_collections() -> None:
    """Collect garbage, and leave the objects that are there out of later collections until this is called again.

    A model has hundreds of thousands of objects that live as long as it. A collection that visits them all stops
    every thread for a fifth of a second, and the small objects of requests cause one every few seconds.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()
