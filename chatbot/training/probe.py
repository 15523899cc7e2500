"""The questions of --probe, whose replies are shown while the model learns."""

import codecs
from collections.abc import Sequence

from chatbot.config.corpus import NONE
from chatbot.config.training import Settings
from chatbot.corpus.encoding.history import source_of
from chatbot.corpus.encoding.vocabulary import Vocabulary
from chatbot.corpus.reading.files.charset import CONTROL, detect_encoding
from chatbot.corpus.reading.files.lines import UNDECODABLE
from chatbot.corpus.text.utterance import tokens_of
from chatbot.errors import UserError
from chatbot.evaluation.samples import Sample

# Bytes of the file that are read, questions that are asked, and characters of each that the model is given, as in chat.
MOST_BYTES, MOST_QUESTIONS, MOST_CHARACTERS = 256 * 2**10, 20, 2000


def read_probe(file: str | None) -> list[str]:
    """Return the first questions of a text file, one a line, in any encoding of pairs. Blank lines are left out.

    file: None or "none" for no questions.

    Raises UserError for a file that cannot be read, that is no text, or that has no question.
    """
    if file is None or file == NONE:
        return []
    remedy = "give a text file with a question in each line"
    try:
        with open(file, "rb") as opened:
            content = opened.read(MOST_BYTES)
    except OSError as error:
        raise UserError(f"--probe {file}: cannot be read ({error.strerror}); {remedy}") from None
    codec, name = detect_encoding(content)
    text = codecs.getincrementaldecoder(codec)("replace").decode(content)
    questions = [line.strip() for line in text.splitlines() if line.strip()][:MOST_QUESTIONS]
    if not questions:
        raise UserError(f"--probe {file}: no question; {remedy}")
    if UNDECODABLE in text or not {*map(chr, CONTROL)}.isdisjoint(text):
        raise UserError(f"--probe {file}: not a text in {name}; {remedy}, in UTF-8")
    return questions


def probe_samples(questions: Sequence[str], settings: Settings, vocabulary: Vocabulary) -> list[Sample]:
    """Return the questions as chat reads them, without a reference. One without tokens is left out."""
    tokens = tokens_of(settings.corpus)
    encoded = ((question, vocabulary.ids(tokens(question[:MOST_CHARACTERS]))) for question in questions)
    return [
        Sample(source_of([ids], vocabulary, settings.model.max_length), question, "")
        for question, ids in encoded
        if ids
    ]
