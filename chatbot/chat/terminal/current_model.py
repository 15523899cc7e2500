"""The model that a chat talks to now, and its responders for different decoding settings."""

import collections
import dataclasses
from pathlib import Path

from chatbot.chat.loading import LoadedModel, load_attempt, load_exported
from chatbot.config.attempts import BEST, LAST, trained_directory
from chatbot.config.decoding import DecodingSettings
from chatbot.export.manifest import MANIFEST
from chatbot.flags import fields_of
from chatbot.inference.text_responder import TextResponder
from chatbot.model.checkpoint_files import read_pointer

# Responders that are kept: TensorFlow traces a new one for about a second.
KEPT = 4


class CurrentModel:
    """A model, and its responders for the settings that were used last.

    decoding: the settings of replies. follow: whether `update` takes newer checkpoints. Raises UserError for settings
    that the model does not admit.
    """

    def __init__(self, model: LoadedModel, decoding: DecodingSettings, follow: bool = False) -> None:
        self._follow = follow
        self._follower: Follower | None = None
        self._take(model, decoding)

    def responder(self, decoding: DecodingSettings | None = None) -> TextResponder:
        """Return the responder for these settings; None: for those of replies.

        Raises UserError for settings that the model does not admit.
        """
        decoding = self.decoding if decoding is None else decoding
        traced = _traced(decoding)
        responder = self._responders.get(traced) or self.model.responder_of(traced)
        responder = responder.varied(decoding.seed, decoding.n_best)
        self._responders[traced] = responder
        self._responders.move_to_end(traced)
        while len(self._responders) > KEPT:
            self._responders.popitem(last=False)
        return responder

    def set_decoding(self, decoding: DecodingSettings) -> None:
        """Set the settings of replies. Raises UserError for settings that the model does not admit."""
        self.responder(decoding)
        self.decoding = decoding

    def switch(self, name: Path) -> None:
        """Take another model. name: of an attempt, or the directory of an attempt or an export.

        Raises UserError for a model that cannot be loaded or does not admit the settings; the old one stays.
        """
        exported = (name / MANIFEST).exists()
        model = load_exported(name) if exported else load_attempt(trained_directory(str(name), "/model"))
        self._take(model, self.decoding)

    def update(self) -> str | None:
        """Take a newer checkpoint if there is one. Returns the line that says so, None without one.

        Raises UserError for one that cannot be loaded; the old one stays, and the next call does not try it again.
        """
        step = self.model.card.step
        if self._follower is None or not self._follower.differs(step):
            return None
        follower, model = self._follower, load_attempt(self.model.directory)
        if model.card.step == step:  # the newer one is damaged, as a warning has said
            return None
        self._take(model, self.decoding)
        self._follower = follower
        return f"The checkpoint of step {model.card.step:,} answers now, instead of that of step {step:,}."

    def _take(self, model: LoadedModel, decoding: DecodingSettings) -> None:
        """Raises UserError, before anything is changed, for settings that the model does not admit."""
        traced = _traced(decoding)
        responder = model.responder_of(traced).varied(decoding.seed, decoding.n_best)
        self.model, self.decoding = model, decoding
        self._responders = collections.OrderedDict({traced: responder})
        is_attempt = not (model.directory / MANIFEST).exists()
        self._follower = Follower(model.directory) if self._follow and is_attempt else None


def _traced(decoding: DecodingSettings) -> DecodingSettings:
    """Return the settings without those that a responder can change when it is traced."""
    return dataclasses.replace(decoding, seed=DecodingSettings.seed, n_best=DecodingSettings.n_best)


def most_replies(decoding: DecodingSettings) -> int:
    """Return the maximum number of replies that this kind of search finds."""
    name = "candidates" if decoding.samples else "beam_size"
    most: int = fields_of(DecodingSettings)[name].metadata["most"]
    return most if decoding.samples else most // decoding.diverse_groups * decoding.diverse_groups


def with_replies(decoding: DecodingSettings, number: int) -> DecodingSettings:
    """Return settings of the same kind of search that finds this number of replies and shows as many.

    decoding: chooses a search. number: at most `most_replies`.
    """
    if decoding.hypotheses >= number:
        return dataclasses.replace(decoding, n_best=number)
    if decoding.samples:
        return dataclasses.replace(decoding, candidates=number, n_best=number)
    groups = decoding.diverse_groups
    return dataclasses.replace(decoding, beam_size=-(-number // groups) * groups, n_best=number)


class Follower:
    """Watches the pointer to the checkpoint that answers: the best one with validation, otherwise the last one.

    directory: of the attempt.
    """

    def __init__(self, directory: Path) -> None:
        self._best, self._last = directory / BEST, directory / LAST
        self._read: bytes | None = None

    def differs(self, step: int) -> bool:
        """Return whether the pointer was changed since the last call and names another checkpoint than of this step.

        Raises UserError for a pointer that is missing or damaged.
        """
        path = self._best if self._best.exists() else self._last
        content = path.read_bytes() if path.exists() else b""
        if content == self._read:
            return False
        self._read = content
        return bool(read_pointer(path)["step"] != step)
