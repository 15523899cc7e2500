"""The conversations of a bot: one function from a message to the reply.

The adapter of a service, `telegram_bot`, gets it as an `Answer` and knows nothing of the model. Commands are texts as
well: it passes "/reset" on like a question.
"""

import asyncio
import collections
import contextlib
import dataclasses
import sys
import time
import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path

from chatbot.chat.conversation import Conversation, rate_last
from chatbot.chat.service import RateLimit, Submit, answers
from chatbot.config.chat import BotSettings
from chatbot.decoding.reply_text import Origin
from chatbot.display import counted
from chatbot.errors import UserError
from chatbot.inference.engine import BusyError
from chatbot.inference.request import Piece, Question
from chatbot.inference.text_responder import EMPTY_QUESTION_REPLY
from chatbot.retrieval.ratings import Rating

# (the name of a conversation, a text) -> the reply, one line; "" is not sent. Raises RefusedError.
Answer = Callable[[str, str], Awaitable[str]]

# With a message in the last minute.
MOST_CONVERSATIONS = 100_000

HELP = """I am a chatbot, trained on {english}. Write a message, and I reply.
/reset begins a new conversation
/good or /bad rates my last reply, which is kept with its question to train me; the other command corrects it
/help shows this text

我是聊天机器人，用{chinese}训练而成。发消息给我，我就会回复。
/reset 开始新的对话
/good 或 /bad 评价我的上一条回复，它和问题会保存下来用于训练；评错了，输入另一个命令即可更正
/help 显示本说明"""
RESET = "A new conversation. 新的对话开始了。"
RATED = "Thank you, I have kept this. 谢谢，已经记下。"
NOT_RATED = "There is no reply to rate. 没有可以评价的回复。"
NOT_KEPT = "This could not be kept. 没能记下来。"
TOO_MANY = "Too many messages; wait {wait}. 消息太多，请等 {seconds} 秒。"
BUSY = "Too many people ask at the moment; try again soon. 现在问的人太多，请稍后再试。"
TOO_SLOW = "This took too long; try again. 回复超时，请再试一次。"
FAILED = "Something went wrong here; try again. 出错了，请再试一次。"


class RefusedError(Exception):
    """A message that got no reply. The text is for the user; "" if the user got it for the message before."""


@dataclasses.dataclass
class _Chat:
    conversation: Conversation
    used: float  # when, in seconds of time.monotonic
    # Messages of a conversation are answered in turn.
    lock: asyncio.Lock = dataclasses.field(default_factory=asyncio.Lock)


class Conversations:
    """The conversations of a bot with a model; `answer` is an `Answer`. All calls are from one event loop.

    submit: of the engine. model: its name, for /good and /bad. pairs: the number of those that it was trained on;
    None: not known. turns: the number of turns before a question that the model reads.
    """

    def __init__(self, submit: Submit, settings: BotSettings, model: str, pairs: int | None, turns: int) -> None:
        self._submit = submit
        self._settings = settings
        self._model = model
        self._pairs = pairs
        self._turns = turns
        # It outlives the conversations.
        self._rate_limit = RateLimit(settings.messages_per_minute, MOST_CONVERSATIONS)
        self._chats: collections.OrderedDict[str, _Chat] = collections.OrderedDict()

    async def answer(self, conversation_id: str, text: str) -> str:
        """Return the reply to a text of a conversation, which begins with its first text. Raises RefusedError."""
        if (wait := self._rate_limit.wait(conversation_id)) > 0:
            notice = TOO_MANY.format(wait=counted(wait, "second"), seconds=wait)
            raise RefusedError(notice if self._rate_limit.is_first_refusal(conversation_id) else "")
        chat = self._chat(conversation_id)
        async with chat.lock:
            command = text.strip().partition(" ")[0].lower()
            if command in ("/start", "/help"):
                return help_of(self._pairs)
            if command == "/reset":
                chat.conversation.exchanges.clear()
                return RESET
            if command in ("/good", "/bad"):
                return await self._rate(conversation_id, chat.conversation, "good" if command == "/good" else "bad")
            return await self._reply(conversation_id, chat.conversation, text)

    def _chat(self, conversation_id: str) -> _Chat:
        """Return a conversation, a new one if it is not in memory, and forget what is over a limit."""
        now = time.monotonic()
        forgotten = now - 60 * self._settings.forget_minutes
        while self._chats and next(iter(self._chats.values())).used < forgotten:
            self._chats.popitem(last=False)
        chat = self._chats.get(conversation_id)
        if chat is None:
            if len(self._chats) >= self._settings.conversations:
                self._chats.popitem(last=False)
            chat = self._chats[conversation_id] = _Chat(Conversation(self._turns), now)
        self._chats.move_to_end(conversation_id)
        chat.used = now
        return chat

    async def _reply(self, conversation_id: str, conversation: Conversation, text: str) -> str:
        question = Question(text, conversation.turns, conversation.last_reply, client=conversation_id)
        try:
            async with contextlib.aclosing(answers(self._submit, [question], self._settings.reply_seconds)) as messages:
                pieces = [message async for message in messages if isinstance(message, Piece)]
        except BusyError:
            raise RefusedError(BUSY) from None
        except asyncio.TimeoutError:
            raise RefusedError(TOO_SLOW) from None
        except Exception as error:  # the model's; the next message is answered
            place = traceback.extract_tb(error.__traceback__)[-1:]  # not the message, which may have the user's text
            where = "".join(f" at {frame.filename}:{frame.lineno}" for frame in place)
            print(f"error: no reply: {type(error).__name__}{where}", file=sys.stderr, flush=True)
            raise RefusedError(FAILED) from error
        reply = "".join(piece.text for piece in pieces)
        if reply != EMPTY_QUESTION_REPLY:
            conversation.add(text, reply, origin=pieces[-1].origin if pieces else Origin())
            del conversation.exchanges[: -1 - self._turns]  # no reply depends on them, nor does a rating
        return reply

    async def _rate(self, conversation_id: str, conversation: Conversation, rating: Rating) -> str:
        if conversation.last is None:
            return NOT_RATED
        rated = Path(self._settings.ratings), conversation, rating, self._model, conversation_id
        try:
            await asyncio.to_thread(rate_last, *rated)
        except UserError as error:
            print(f"error: {error}", file=sys.stderr, flush=True)
            return NOT_KEPT
        return RATED


def help_of(pairs: int | None) -> str:
    """Return the text of /help. pairs: the number of those that the model was trained on; None: not known."""
    english = "question-answer pair"
    chinese = "问答对"
    if pairs is None:
        return HELP.format(english=f"{english}s", chinese=chinese)
    return HELP.format(english=counted(pairs, english), chinese=f" {pairs:,} 个{chinese}")
