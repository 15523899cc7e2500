"""A chat in a terminal: a conversation with the current model, and what the commands do to them."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from chatbot.chat.conversation import Conversation, Exchange, Rating
from chatbot.chat.loading import LoadedModel
from chatbot.chat.ratings import RATINGS, rate_last
from chatbot.chat.terminal.current_model import CurrentModel, most_replies, with_replies
from chatbot.chat.terminal.screen import Screen, attention_table
from chatbot.chat.terminal.settings import FIELDS, HISTORY, in_names_of_settings
from chatbot.config.chat import ChatSettings
from chatbot.config.decoding import DecodingSettings
from chatbot.corpus.reading.display import counted, decodable
from chatbot.errors import UserError
from chatbot.inference.ranking import Reply
from chatbot.inference.text_responder import EMPTY_QUESTION_REPLY

# With a search for the best reply, /retry looks for this number of replies or multiples of it.
NEXT_BEST = 5
# /retry draws at most this number of samples until one differs from the replies before.
SAMPLES = 10


class Session:
    """A chat in a terminal. Raises UserError for settings that the model does not admit."""

    def __init__(self, model: LoadedModel, settings: ChatSettings, screen: Screen) -> None:
        self.current = CurrentModel(model, settings.decoding, settings.follow)
        self.history = settings.history  # what was chosen, also while a model reads fewer turns
        self.conversation = Conversation(settings.turns_of(model.turns))
        self.screen = screen
        self.finished = False

    def answer(self, question: str) -> None:
        """Show the reply to a question, or the best ones with their scores, and remember it."""
        self.update()
        question, turns = decodable(question), self.conversation.turns
        responder = self.current.responder()
        if responder.decoding.n_best > 1:
            with self.screen.busy():
                replies = responder.n_best(question, turns)
            self._show(replies)
            reply = replies[0].text
        else:
            reply = self.screen.stream(responder.stream(question, turns))
        if reply != EMPTY_QUESTION_REPLY:
            self.conversation.add(question, reply, self.current.model.card.name)

    def show_best(self, number: int) -> None:
        """Show the best replies to the last question with their scores."""
        last = self.last("/n")
        decoding = self.current.responder().decoding
        if number > (most := most_replies(decoding)):
            raise UserError(f"/n {number}: this search finds at most {most:,} replies; ask for at most as many")
        with self.screen.busy():
            responder = self.current.responder(with_replies(decoding, number))
            replies = responder.n_best(last.question, self.conversation.turns_before_last)
        self._show(replies)

    def retry(self) -> None:
        """Replace the last reply by another one: a sample of another seed, or the next best one."""
        last, before = self.last("/retry"), self.conversation.turns_before_last
        with self.screen.busy():
            decoding = self.current.responder().decoding
            found = self._sample if decoding.samples else self._next_best
            reply = found(last, before, decoding)
        if reply is None and decoding.samples:
            raise UserError(
                "/retry: no sample differs from the replies before; /set temperature=2 makes more varied ones"
            )
        if reply is None:
            raise UserError("/retry: the search finds no other reply; /set temperature=1 beam_size= samples replies")
        self.screen.line(reply)
        last.replace(reply, before, self.current.model.card.name)

    def _sample(self, last: Exchange, before: Sequence[str], decoding: DecodingSettings) -> str | None:
        for number in range(SAMPLES):
            seed = (decoding.seed + len(last.found) + number) % 2**31
            responder = self.current.responder(dataclasses.replace(decoding, seed=seed, n_best=1))
            reply = responder.reply(last.question, before)
            if reply not in last.found:
                return reply
        return None

    def _next_best(self, last: Exchange, before: Sequence[str], decoding: DecodingSettings) -> str | None:
        wanted = max(-(-(len(last.found) + 1) // NEXT_BEST) * NEXT_BEST, decoding.hypotheses)
        responder = self.current.responder(with_replies(decoding, min(wanted, most_replies(decoding))))
        replies = [reply.text for reply in responder.n_best(last.question, before)]
        return next((reply for reply in replies if reply not in last.found), None)

    def explanation(self) -> list[str] | None:
        """Return the lines of /why about the last reply; None for a model that shows no attention."""
        last = self.last("/why")
        attention = self.current.responder().attention(last.question, last.reply, last.before)
        return None if attention is None else attention_table(attention, self.screen.columns)

    def rate(self, rating: Rating) -> None:
        """Append a rating of the last reply to the file of ratings; it replaces another rating of this reply.

        Raises UserError without a reply, and for a rating that it has already.
        """
        last = self.conversation.last
        if last is None:
            raise UserError(f"/{rating}: no reply to rate yet; ask a question first")
        if last.rating == rating:
            raise UserError(f"/{rating}: the reply is in {RATINGS} already")
        rate_last(RATINGS, self.conversation, rating, last.model or self.current.model.card.name)

    def last(self, command: str) -> Exchange:
        """Return the last question and its reply. Raises UserError without one."""
        if self.conversation.last is None:
            raise UserError(f"{command}: no reply yet; ask a question first")
        return self.conversation.last

    def set(self, changes: dict[str, Any]) -> None:
        """Change settings by name. Raises UserError for values that are not allowed; nothing is changed then."""
        if HISTORY in changes:
            self._check_history(changes[HISTORY])
        history = changes.pop(HISTORY, self.history)
        if changes:
            before = [name for name in self.changed() if name not in changes]
            with in_names_of_settings(before, "/set "):
                self.current.set_decoding(dataclasses.replace(self.current.decoding, **changes))
        self._read(history)

    def changed(self) -> list[str]:
        """Return the names of the settings that have not their defaults, because of flags or of /set.

        The number of turns is not one of them while the model cannot read as many as were chosen.
        """
        history = self.history if self.history == self.conversation.read else None
        chosen = {HISTORY: history, **dataclasses.asdict(self.current.decoding)}
        return [name for name, field in FIELDS.items() if chosen[name] != field.default]

    def set_default(self) -> None:
        """Change all settings to their defaults."""
        self.current.set_decoding(DecodingSettings())
        self._read(None)

    def switch(self, name: str) -> None:
        """Talk to another model. Raises UserError for one that cannot be used; the old one stays."""
        with in_names_of_settings(self.changed()):
            self.current.switch(expanded(name))
        self._read(self.history)

    def reads(self) -> str:
        """Return the sentence about the turns that are read; an empty one if there are none."""
        read = self.conversation.read
        return f"It reads {counted(read, 'turn')} before a question." if read else ""

    def update(self) -> None:
        """Take a newer checkpoint with --follow, and show the line that says so."""
        try:
            line = self.current.update()
        except UserError as error:
            self.screen.error(error)
        else:
            if line is not None:
                self.screen.note(line)

    def _show(self, replies: list[Reply]) -> None:
        for number, reply in enumerate(replies, 1):
            self.screen.scored(f"{number}. {reply.text}", reply.score)

    def _read(self, history: int | None) -> None:
        """Read this number of turns, at most as many as the model was trained with. None: as many as that."""
        trained = self.current.model.turns
        self.history, self.conversation.read = history, trained if history is None else min(history, trained)

    def _check_history(self, history: int | None) -> None:
        """Raise UserError for more turns than the model was trained with."""
        trained = self.current.model.turns
        if history is None or history <= trained:
            return
        if not trained:
            raise UserError(f"/set {HISTORY}={history}: the model reads one question at a time; leave {HISTORY} out")
        raise UserError(
            f"/set {HISTORY}={history}: the model was trained to read {counted(trained, 'turn')} before a question; "
            f"give at most {trained}"
        )


def expanded(path: str) -> Path:
    """Return a path with the home directory in place of `~`. Raises UserError for a user without one."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise UserError(f"{path}: no such home directory; give the whole path") from None
