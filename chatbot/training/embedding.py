"""Embeds the training pairs of an attempt in a thread, while the model trains."""

import contextlib
import os
import threading

from chatbot.attempts.files import RETRIEVAL
from chatbot.config.corpus import AUTO, NONE
from chatbot.corpus.workers import progress_bar
from chatbot.display import duration, pluralize
from chatbot.errors import UserError
from chatbot.retrieval.embeddings import E5
from chatbot.retrieval.index import MEANING
from chatbot.retrieval.indexing import index_by_meaning, meaning_writer
from chatbot.retrieval.vectors import MeaningWriter
from chatbot.training.run import Run

# With --embeddings auto, pairs are embedded if this takes less time, in seconds.
MAX_SECONDS = 600.0
# The priority of the thread, from -20 (highest) to 19 (lowest): training continues at nearly its full speed.
NICE = 10
# The interval at which the progress bar is updated after training, in seconds.
INTERVAL = 0.2


class PairEmbedding:
    """Embeds training pairs in a thread with a low priority.

    Args:
        writer: The writer of the embeddings, or None if there is nothing to do.
    """

    def __init__(self, writer: MeaningWriter | None) -> None:
        self._writer = writer
        self._is_wanted = True
        self._error: OSError | UserError | None = None
        self._thread = threading.Thread(target=self._run, name="embedding", daemon=True)
        if writer is not None:
            self._thread.start()

    def _run(self) -> None:
        with contextlib.suppress(OSError, AttributeError):  # Other systems than Linux have no priorities of threads.
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
        assert self._writer is not None, "the thread was started"
        try:
            self._writer.write(lambda: self._is_wanted)
        except (OSError, UserError) as error:
            self._error = error

    def finish(self) -> None:
        """Wait until all pairs are embedded.

        Raises:
            UserError: The embedding model failed.
            OSError: A file cannot be written.
        """
        if self._thread.is_alive():
            assert self._writer is not None, "the thread was started"
            print(f"{self._state()}. Embedding the others; Ctrl-C leaves them to the next run ...", flush=True)
            with progress_bar("Embedding", self._writer.pairs, "pairs") as bar:
                while self._thread.is_alive():
                    bar.update(self._writer.done - bar.n)
                    self._thread.join(INTERVAL)
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """Stop after the current block of pairs, and print how to embed the remaining ones."""
        if self._thread.is_alive():
            self.close()
            print(f"Search by meaning is not ready: {self._state()}. The same command embeds the others.")

    def close(self) -> None:
        """Stop after the current block of pairs. The next run of the attempt embeds the remaining ones."""
        self._is_wanted = False
        if self._thread.is_alive():
            self._thread.join()

    def status(self) -> str:
        """Return the progress for the progress bar of training, or an empty string if nothing is left to do."""
        if self._writer is None or not self._thread.is_alive():
            return ""
        return f"{self._writer.done / self._writer.pairs:.0%} of the pairs embedded"

    def _state(self) -> str:
        assert self._writer is not None, "the thread was started"
        return f"{self._writer.done:,} of {pluralize(self._writer.pairs, 'pair')} are embedded"


def start_embedding(run: Run) -> PairEmbedding:
    """On the chief, start to embed the stored pairs if --embeddings requires it, and print the decision.

    Raises:
        UserError: The embedding model that --embeddings names cannot be used.
    """
    folder = run.settings.run.directory / RETRIEVAL
    vocabulary = run.data.vocabulary
    name = run.settings.run.embeddings
    is_auto = name == AUTO
    if not run.team.chief or not folder.exists() or (is_auto and (folder / MEANING).exists()):
        return PairEmbedding(None)
    if name == NONE:
        index_by_meaning(folder, vocabulary, NONE)
        return PairEmbedding(None)
    try:
        writer = meaning_writer(folder, vocabulary, E5 if is_auto else name)
    except UserError as error:
        if not is_auto:
            raise
        print(f"Pairs are searched by characters only: {error}.")
        return PairEmbedding(None)
    if writer.is_written:
        return PairEmbedding(None)
    seconds = writer.seconds_left()
    pairs = pluralize(writer.pairs - writer.done, "pair")
    if is_auto and seconds > MAX_SECONDS:
        reason = f"embedding {pairs} takes about {duration(seconds)}, longer than {duration(MAX_SECONDS)}"
        print(f"Pairs are searched by characters only: {reason} (to do it anyway: --embeddings {E5}).")
        return PairEmbedding(None)
    cost = f"about {duration(seconds)}, {writer.megabytes:,.0f} MB"
    print(f"Embedding {pairs} during training, to search them by meaning: {cost} (--embeddings).")
    return PairEmbedding(writer)
