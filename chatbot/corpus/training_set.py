"""The training pairs and the validation pairs of a run."""

import dataclasses

from chatbot.config.corpus import AUTO, NONE, CorpusSettings, EncodingSettings
from chatbot.corpus.encoding.corpus import Corpus, encode
from chatbot.corpus.encoding.history import History
from chatbot.corpus.encoding.selection import TRAINING, VALIDATION, Selection
from chatbot.corpus.encoding.tokenised import CorpusFiles, corpus_files, tokenise
from chatbot.corpus.encoding.vocabulary import Vocabulary
from chatbot.corpus.encoding.workers import worker_pool
from chatbot.corpus.reading.files.sources import Parts, find_parts, find_sources
from chatbot.corpus.text.utterance import without_pair_rules


def training_files(settings: CorpusSettings, history: int = 0) -> CorpusFiles:
    """Return the files to train on; of a folder, an archive or a JSON object with parts, the training part.

    history: the maximum number of turns before a question. Raises UserError when a file cannot be used.
    """
    return corpus_files(_parts(settings).training, settings, history)


def left_out(settings: CorpusSettings) -> list[str]:
    """Return the names of the test parts of the files to train on, which are not read."""
    return _parts(settings).left_out


def validation_file(settings: CorpusSettings, encoding: EncodingSettings) -> CorpusFiles | None:
    """Return the file of --validation FILE, or with auto the validation parts of the files to train on; None without.

    Rules that drop pairs do not apply. Raises UserError when a file cannot be used.
    """
    if encoding.validation == AUTO:
        return validation_parts(settings, encoding.history)
    if encoding.validation == NONE:
        return None
    return corpus_files(find_sources([encoding.validation]), without_pair_rules(settings), encoding.history)


def validation_parts(settings: CorpusSettings, history: int = 0) -> CorpusFiles | None:
    """Return the validation parts of the files to train on, None if they have none.

    history: the maximum number of turns before a question. Rules that drop pairs do not apply. Raises UserError when a
    file cannot be used.
    """
    sources = _parts(settings).validation
    return corpus_files(sources, without_pair_rules(settings), history) if sources else None


def _parts(settings: CorpusSettings) -> Parts:
    return find_parts(settings.data, settings.source_file, settings.target_file)


def training_selection(settings: CorpusSettings, encoding: EncodingSettings) -> Selection:
    """Return the selection of the training pairs. Tokenises validation files, whose pairs are excluded."""
    held_out: frozenset[int] = frozenset()
    part = TRAINING if encoding.validation == AUTO else None
    if files := validation_file(settings, encoding):
        part = None
        with worker_pool() as pool:
            held_out = frozenset(tokenise(files, pool).hashes().pairs.tolist())
    return dataclasses.replace(Selection.of(settings), held_out=held_out, part=part)


def training_set(
    settings: CorpusSettings,
    encoding: EncodingSettings,
    vocabulary: Vocabulary | None = None,
    max_length: int | None = None,
) -> Corpus:
    """Return the encoded pairs to train on, read from the cache if possible. Raises UserError when none is left.

    vocabulary: None: a new one is built from the pairs. max_length: of the sources with history.
    """
    selection, history = training_selection(settings, encoding), History(encoding.history, max_length)
    files = training_files(settings, encoding.history)
    return encode(files, selection, vocabulary or encoding.vocabulary_size, history)


def validation_set(
    settings: CorpusSettings, encoding: EncodingSettings, vocabulary: Vocabulary, max_length: int | None = None
) -> Corpus | None:
    """Return the encoded pairs to validate on, or None if there are none. Raises UserError for an unusable file.

    max_length: of the sources with history.
    """
    history = History(encoding.history, max_length)
    if files := validation_file(settings, encoding):
        return encode(files, Selection(), vocabulary, history)
    if encoding.validation == NONE:
        return None
    files = training_files(settings, encoding.history)
    held_out = encode(files, Selection("duplicates" in settings.clean, part=VALIDATION), vocabulary, history)
    return held_out if held_out.pairs else None
