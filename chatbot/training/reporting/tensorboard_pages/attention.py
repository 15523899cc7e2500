"""The attention of replies as images, with their words as texts."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from chatbot.inference.word_attention import WordAttention

# The width of a cell of a heat map in pixels, and the colour of the weight 1.
CELL, BLUE = 24, (8, 48, 107)


def write_attention(samples: Sequence[WordAttention], step: int) -> None:
    """Write the attention of each sample reply as an image, and its words as a text, with the default writer.

    A row of the image is a word of the reply, a column a word of the question; dark blue is 1.
    """
    for number, (question, reply, weights) in enumerate(samples, 1):
        tf.summary.image(f"reply_attention/{number}", heat_map(weights)[None], step)
        words = (" ".join(f"{i} `{word}`" for i, word in enumerate(side, 1)) for side in (reply, question))
        text = "rows: {}\n\ncolumns: {}".format(*words)
        tf.summary.text(f"reply_attention_words/{number}", text, step)


def heat_map(weights: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
    """weights [rows, columns], 0 to 1 -> an image of square cells, [CELL rows, CELL columns, 3], from white to blue."""
    colours = 255 + weights[..., None] * (np.array(BLUE) - 255)  # [rows, columns, 3]
    return np.repeat(np.repeat(colours, CELL, axis=0), CELL, axis=1).round().astype(np.uint8)
