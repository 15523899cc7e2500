"""Threads of TensorFlow in a process that chats."""

import os

from chatbot.corpus.encoding.workers import cores

VARIABLE = "TF_NUM_INTRAOP_THREADS"


def limit_threads() -> None:
    """Let TensorFlow compute an operation with half of the cores, unless the environment has TF_NUM_INTRAOP_THREADS.

    To be called before TensorFlow computes anything. The operations of a reply are short, and threads that wait for
    each other take more time than they save: with one thread on two cores, a reply takes 0.55 to 0.9 of the time.
    """
    os.environ.setdefault(VARIABLE, str(max(1, cores() // 2)))
