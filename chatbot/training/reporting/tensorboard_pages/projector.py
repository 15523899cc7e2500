"""The Projector page: the embedding of the most frequent words."""

from pathlib import Path

import numpy as np

from chatbot.corpus.encoding.vocabulary import SPECIALS, Vocabulary
from chatbot.durable import write_file
from chatbot.model.seq2seq import Seq2Seq

MOST_WORDS, MOST_BYTES = 10_000, 10_000_000
CONFIG = """embeddings {{
  tensor_name: "embedding"
  tensor_path: "embedding.bytes"
  tensor_shape: {}
  tensor_shape: {}
  metadata_path: "words.tsv"
}}
"""


def write_embedding(folder: Path, model: Seq2Seq, vocabulary: Vocabulary) -> None:
    """Write the vectors of the most frequent words, and the words, to the folder of a TensorBoard run.

    Ids are in the order of frequency. At most MOST_BYTES are copied from the device: this takes tens of milliseconds.
    """
    width = model.embedding.embeddings.shape[1]
    first = len(SPECIALS)
    last = min(vocabulary.first_mark, first + MOST_WORDS, first + max(1, MOST_BYTES // (4 * width)))
    vectors = np.array(model.embedding.embeddings.value[first:last], np.float32)  # [words, width]
    # TensorBoard takes a file for binary if it is not UTF-8. The byte 255 in the lowest bits of the first number makes
    # sure of it.
    vectors.view(np.uint8)[0, 0] = 255
    contents = {
        "embedding.bytes": vectors.tobytes(),
        "words.tsv": "".join(f"{word}\n" for word in vocabulary.tokens[first:last]).encode(),
        "projector_config.pbtxt": CONFIG.format(*vectors.shape).encode(),
    }
    for name, content in contents.items():
        write_file(folder / name, content)
