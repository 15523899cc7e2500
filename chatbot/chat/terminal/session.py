"""A chat in a terminal: a conversation with a model, which may change. Commands do the rest."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chatbot.attempts.checkpoint import read_pointer
from chatbot.attempts.files import trained_directory
from chatbot.chat.conversation import Conversation, Exchange
from chatbot.chat.loading import LoadedModel, Version, load_model, pointer_of, version_of
from chatbot.config.decoding import DecodingSettings
from chatbot.decoding.reply_text import Origin
from chatbot.display import counted, decodable
from chatbot.errors import UserError
from chatbot.export.manifest import MANIFEST
from chatbot.inference.request import Piece, Question
from chatbot.inference.text_responder import EMPTY_QUESTION_REPLY

if TYPE_CHECKING:
    from chatbot.chat.terminal.screen import Screen


class CurrentModel:
    """The model that answers, which may change, and the decoding settings of replies.

    decoding: as they were chosen. follow: whether `update` takes newer checkpoints.
    """

    def __init__(self, model: LoadedModel, decoding: DecodingSettings, follow: bool = False) -> None:
        self.model = model
        self.decoding = decoding
        self._follow = follow
        self._version: Version | None = ("", 0, 0)  # of the pointer, as it was read last

    @property
    def used_decoding(self) -> DecodingSettings:
        """The settings of replies, with the model's default search if none was chosen."""
        return self.model.responder.completed(self.decoding)

    def set_decoding(self, decoding: DecodingSettings) -> None:
        """Set the settings of replies. Raises UserError for those that the model does not admit."""
        self.model.responder.completed(decoding)
        self.decoding = decoding

    def pieces(self, text: str, history: Sequence[str], last_reply: str, **fields: Any) -> Iterator[Piece]:
        """Ask, and yield the pieces of the replies. fields: of `Question`, by default with the settings of replies."""
        return self.model.engine.pieces(
            Question(text, tuple(history), last_reply, **{"decoding": self.used_decoding, **fields})
        )

    def close(self) -> None:
        """Compute nothing more."""
        self.model.engine.close()

    def switch(self, name: Path) -> None:
        """Take another model. name: of an attempt, or the directory of an attempt or an export.

        Raises UserError for a model that cannot be loaded or does not admit the settings; the old one stays.
        """
        directory = name if (name / MANIFEST).exists() else trained_directory(str(name), "/model")
        self._take(load_model(directory, self.decoding))
        self._version = ("", 0, 0)

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
            model = load_model(directory, self.decoding)
        except UserError as error:
            say(f"Warning: {error}")
            return
        if model.card.step == step:  # the newer one is damaged, as a warning has said
            model.engine.close()
            return
        self._take(model)
        say(f"The checkpoint of step {model.card.step:,} answers now, instead of that of step {step:,}.")

    def _take(self, model: LoadedModel) -> None:
        self.model.engine.close()
        self.model = model


class Session:
    """A chat in a terminal with a model. read: the maximum number of turns that it reads before a question."""

    def __init__(self, current: CurrentModel, read: int, screen: "Screen") -> None:
        self.current = current
        self.conversation = Conversation(read)
        self.screen = screen
        self.finished = False

    def answer(self, question: str) -> None:
        """Show the reply to a question, or the best ones with their scores, and remember it."""
        self.current.update(self.screen.note)
        question = decodable(question)
        turns = self.conversation.turns
        asked = question, turns, self.conversation.last_reply
        number = self.current.decoding.n_best
        if number > 1:
            first, *_ = self.show(self.current.pieces(*asked, n_best=number))
            reply = first.text
            origin = first.origin
        else:
            reply, origin = self.screen.stream(self.current.pieces(*asked))
        if reply != EMPTY_QUESTION_REPLY:
            self.conversation.add(question, reply, self.current.model.card.name, origin=origin)

    def show(self, replies: Iterable[Piece]) -> list[Piece]:
        """Show replies with their scores. Return them."""
        found = list(replies)
        for number, reply in enumerate(found, 1):
            self.screen.line(f"{number}. {reply.text}  ({reply.score or 0:.2f})")
        return found

    def again(self, **fields: Any) -> list[Piece]:
        """Return other replies to the last question. fields: of `Question`."""
        last = self.conversation.exchanges[-1]
        before = self.conversation.turns_before_last
        return list(self.current.pieces(last.question, before, self.conversation.reply_before_last, **fields))

    def last(self, command: str) -> Exchange:
        """Return the last question and its reply. Raises UserError without one."""
        if self.conversation.last is None:
            raise UserError(f"{command}; ask a question first")
        return self.conversation.last

    def origin(self, exchange: Exchange) -> Origin:
        """Return where a reply comes from, and remember it: its rating may change what is looked up."""
        if exchange.origin is None:
            asked = exchange.question, exchange.reply, exchange.before
            exchange.origin = self.current.model.responder.origin(*asked, self.current.used_decoding)
        return exchange.origin

    def introduce(self) -> None:
        """Say what the model was trained on, and how many turns it reads."""
        self.screen.note(f"Talking to {self.current.model.card.line()}.")
        if read := self.conversation.read:
            self.screen.note(f"It reads {counted(read, 'turn')} before a question.")
        if questions := self.current.model.card.questions:
            self.screen.note(f"Questions that it has learned: {'  '.join(questions)}")
