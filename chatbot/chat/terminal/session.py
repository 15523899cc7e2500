"""A chat in a terminal: a conversation with a model, which may change. Commands do the rest."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from chatbot.attempts.checkpoint import read_pointer
from chatbot.attempts.files import trained_directory
from chatbot.chat.conversation import Conversation, Exchange
from chatbot.chat.loading import LoadedModel, load_model, pointer_of, version_of
from chatbot.config.chat import ChatSettings
from chatbot.config.decoding import DecodingSettings
from chatbot.decoding.reply_text import Origin, Reply
from chatbot.display import counted, decodable
from chatbot.errors import UserError
from chatbot.export.manifest import MANIFEST
from chatbot.inference.text_responder import EMPTY_QUESTION_REPLY, TextResponder

if TYPE_CHECKING:
    from chatbot.chat.terminal.screen import Screen

# Responders that are kept: TensorFlow traces a new one for about a second.
KEPT = 4


class CurrentModel:
    """A model, and its responders for the settings that were used last.

    decoding: the settings of replies. follow: whether `update` takes newer checkpoints. Raises UserError for settings
    that the model does not admit.
    """

    def __init__(self, model: LoadedModel, decoding: DecodingSettings, follow: bool = False) -> None:
        self._follow = follow
        self._version: tuple[str, int, int] | None = None  # of the pointer, as it was read last
        self._take(model, decoding)

    def responder(self, decoding: DecodingSettings | None = None) -> TextResponder:
        """Return the responder for these settings; None: for those of replies. Raises UserError as the class."""
        return self._responder_of(self.decoding if decoding is None else decoding)

    def set_decoding(self, decoding: DecodingSettings) -> None:
        """Set the settings of replies. Raises UserError as the class."""
        self.responder(decoding)
        self.decoding = decoding

    def switch(self, name: Path) -> None:
        """Take another model. name: of an attempt, or the directory of an attempt or an export.

        Raises UserError for a model that cannot be loaded or does not admit the settings; the old one stays.
        """
        directory = name if (name / MANIFEST).exists() else trained_directory(str(name), "/model")
        self._take(load_model(directory), self.decoding)

    def update(self, say: Callable[[str], None]) -> None:
        """Take a newer checkpoint if there is one. say: gets the line that says so, or why it cannot be loaded.

        Then the old one stays, and the next call does not try it again.
        """
        directory = self.model.directory
        step = self.model.card.step
        if not self._follow or (directory / MANIFEST).exists() or self._version == (version := version_of(directory)):
            return
        self._version = version
        try:
            if read_pointer(pointer_of(directory))["step"] == step:
                return
            model = load_model(directory)
            if model.card.step == step:  # the newer one is damaged, as a warning has said
                return
            self._take(model, self.decoding)
        except UserError as error:
            say(f"Warning: {error}")
            return
        self._version = version
        say(f"The checkpoint of step {model.card.step:,} answers now, instead of that of step {step:,}.")

    def _take(self, model: LoadedModel, decoding: DecodingSettings) -> None:
        """Raises UserError, before anything is changed, for settings that the model does not admit."""
        responder_of = functools.lru_cache(KEPT)(model.responder_of)
        responder_of(decoding)
        self.model = model
        self.decoding = decoding
        self._responder_of = responder_of
        self._version = ("", 0, 0)


class Session:
    """A chat in a terminal. Raises UserError for settings that the model does not admit."""

    def __init__(self, model: LoadedModel, settings: ChatSettings, screen: "Screen") -> None:
        self.current = CurrentModel(model, settings.decoding, settings.follow)
        self.conversation = Conversation(settings.turns_of(model.turns))
        self.screen = screen
        self.finished = False

    def answer(self, question: str) -> None:
        """Show the reply to a question, or the best ones with their scores, and remember it."""
        self.current.update(self.screen.note)
        question = decodable(question)
        turns = self.conversation.turns
        last_reply = self.conversation.last_reply
        responder = self.current.responder()
        if responder.decoding.n_best > 1:
            replies = responder.n_best(question, turns, last_reply=last_reply)
            self.show(replies)
            reply = replies[0].text
        else:
            reply = self.screen.stream(responder.stream(question, turns, last_reply))
        if reply != EMPTY_QUESTION_REPLY:
            origin = responder.origin(question, reply, turns)
            self.conversation.add(question, reply, self.current.model.card.name, origin=origin)

    def show(self, replies: list[Reply]) -> None:
        """Show replies with their scores."""
        for number, reply in enumerate(replies, 1):
            self.screen.line(f"{number}. {reply.text}  ({reply.score:.2f})")

    def last(self, command: str) -> Exchange:
        """Return the last question and its reply. Raises UserError without one."""
        if self.conversation.last is None:
            raise UserError(f"{command}; ask a question first")
        return self.conversation.last

    def origin(self, exchange: Exchange) -> Origin:
        """Return where a reply comes from, and remember it: its rating may change what is looked up."""
        if exchange.origin is None:
            exchange.origin = self.current.responder().origin(exchange.question, exchange.reply, exchange.before)
        return exchange.origin

    def introduce(self) -> None:
        """Say what the model was trained on, and how many turns it reads."""
        self.screen.note(f"Talking to {self.current.model.card.line()}.")
        if read := self.conversation.read:
            self.screen.note(f"It reads {counted(read, 'turn')} before a question.")
        if questions := self.current.model.card.questions:
            self.screen.note(f"Questions that it has learned: {'  '.join(questions)}")
