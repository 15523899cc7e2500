"""The training pairs: the pairs of the given files without those of the validation file."""

from chatbot.config.corpus import CorpusSettings, EncodingSettings
from chatbot.corpus.encoding.corpus import Corpus, encode
from chatbot.corpus.encoding.selection import Selection
from chatbot.corpus.encoding.tokenised import CorpusFiles, corpus_files, tokenise
from chatbot.corpus.encoding.workers import worker_pool
from chatbot.corpus.reading.sources import find_sources
from chatbot.corpus.text.utterance import without_pair_rules


def training_files(settings: CorpusSettings) -> CorpusFiles:
    """Return the files to train on. Raises UserError when a file cannot be used."""
    return corpus_files(find_sources(settings.data, settings.source_file, settings.target_file), settings)


def validation_files(settings: CorpusSettings, validation: str | None) -> CorpusFiles | None:
    """Return the validation file, without rules that drop pairs. Raises UserError when it cannot be used."""
    if validation is None:
        return None
    return corpus_files(find_sources([validation]), without_pair_rules(settings))


def training_selection(settings: CorpusSettings, validation: str | None) -> Selection:
    """Return the selection of the training pairs. Tokenises the validation file, whose pairs are excluded."""
    held_out: frozenset[int] = frozenset()
    if files := validation_files(settings, validation):
        with worker_pool() as pool:
            held_out = frozenset(tokenise(files, pool).pair_hashes().tolist())
    return Selection("duplicates" in settings.clean, settings.max_reply_frequency, held_out)


def training_set(settings: CorpusSettings, encoding: EncodingSettings) -> Corpus:
    """Return the encoded pairs to train on, read from the cache if possible. Raises UserError when none is left."""
    selection = training_selection(settings, encoding.validation)
    return encode(training_files(settings), selection, encoding.vocabulary_size)
