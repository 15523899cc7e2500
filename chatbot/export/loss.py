"""The loss of exported weights on held-out pairs."""

import dataclasses

from chatbot.config.export import ExportSettings
from chatbot.config.training import Settings
from chatbot.corpus.dataset import encode, validation_set
from chatbot.corpus.files import corpus_files
from chatbot.corpus.reading.display import counted
from chatbot.corpus.reading.open.sources import find_parts
from chatbot.corpus.selection import Selection
from chatbot.corpus.shards import Shards
from chatbot.corpus.tokenizer import without_pair_rules
from chatbot.errors import UserError
from chatbot.evaluation.likelihood import Scorer
from chatbot.model.saved import Trained


class HeldOut:
    """Held-out pairs, read once: those of --data, or those that the attempt was validated on.

    Raises UserError if the files of --data cannot be read.
    """

    def __init__(self, trained: Trained, settings: ExportSettings) -> None:
        self._trained = trained
        self._scorer = Scorer(trained.model)
        self._shards: Shards | None = None
        self._reason = "the attempt has no validation pairs"
        try:
            self._shards = _pairs(trained, settings)
        except UserError as error:
            if settings.data:
                raise
            self._reason = f"the attempt's validation pairs cannot be read ({error})"

    def loss(self) -> float | None:
        """Return the nats per character by the weights that the trained model has now; None without pairs."""
        return None if self._shards is None else self._scorer(self._shards).nats_per_character

    def line(self, loss: float | None, before: float | None) -> str:
        """Return the line about a loss. before: with the weights in float32; None if that is what was measured."""
        if loss is None:
            return f"No loss was measured: {self._reason}; give pairs with --data FILE."
        assert self._shards is not None
        change = "" if before is None else f", {loss - before:+.4f} against float32"
        return f"{loss:.4f} nats per character on {counted(self._shards.lengths.pairs, 'held-out pair')}{change}"


def _pairs(trained: Trained, settings: ExportSettings) -> Shards | None:
    attempt: Settings = trained.settings
    vocabulary, max_length = trained.vocabulary, attempt.model.max_length
    if settings.data:
        corpus = dataclasses.replace(without_pair_rules(attempt.corpus), columns=(), encoding=None, format=None)
        files = corpus_files(find_parts(settings.data).measured, corpus)
        return encode(files, Selection(), vocabulary, attempt.encoding.history, max_length).shards
    held_out = validation_set(attempt.corpus, attempt.encoding, vocabulary, max_length)
    return None if held_out is None else held_out.shards
