"""Answers the messages that users send to a bot, including commands such as /reset, and enforces rate limits."""

import asyncio
import contextlib
import dataclasses
import sys
import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path

from chatbot.chat.clients import RateLimit, Recent, Submit, stream_replies
from chatbot.chat.conversation import Conversation, rate_last
from chatbot.config.chat import BotSettings
from chatbot.decoding.reply_text import Origin
from chatbot.display import pluralize
from chatbot.errors import UserError
from chatbot.inference.request import Piece, Question
from chatbot.inference.request_queue import BusyError
from chatbot.inference.text_responder import EMPTY_QUESTION_REPLY
from chatbot.retrieval.ratings import Rating

# A function that returns a one-line reply, given a conversation id and a message. It can raise RefusedError.
Answer = Callable[[str, str], Awaitable[str]]

# The maximum number of conversations that the rate limit tracks.
MAX_CONVERSATIONS = 100_000

HELP = """I am a chatbot trained on {english}. Send me a message, and I will reply.
/reset starts a new conversation
/good or /bad rates my last reply, which is saved with its question to train me; send the other one to change the rating
/help shows this text

我是聊天机器人，用{chinese}训练而成。发消息给我，我就会回复。
/reset 开始新的对话
/good 或 /bad 评价我的上一条回复，它和问题会保存下来用于训练；评错了，输入另一个命令即可更正
/help 显示本说明"""
RESET = "Started a new conversation. 新的对话开始了。"
RATED = "Thank you, your rating was saved. 谢谢，已经记下。"
NOT_RATED = "There is no reply to rate. 没有可以评价的回复。"
NOT_SAVED = "Your rating could not be saved. 没能记下来。"
TOO_MANY = "Too many messages; please wait {wait}. 消息太多，请等 {seconds} 秒。"
BUSY = "Too many people are asking right now; please try again soon. 现在问的人太多，请稍后再试。"
TOO_SLOW = "The reply took too long; please try again. 回复超时，请再试一次。"
FAILED = "Something went wrong; please try again. 出错了，请再试一次。"


class RefusedError(Exception):
    """Raised if the bot does not answer a message.

    The error text is sent to the user. It is empty if the user has already been told, and then nothing is sent.
    """


@dataclasses.dataclass
class _Chat:
    """A conversation, with a lock so that its messages are answered one at a time."""

    conversation: Conversation
    lock: asyncio.Lock = dataclasses.field(default_factory=asyncio.Lock)


class Conversations:
    """Manages a bot's conversations with its users. All methods must be called from the same event loop.

    Args:
        submit: Submits a question to the model. This is `Engine.submit`.
        settings: The settings of the bot.
        model: The name of the model, which is recorded with ratings.
        pairs: The number of training pairs of the model; None if unknown.
        max_turns: The maximum number of earlier messages that the model reads along with a question.
    """

    def __init__(self, submit: Submit, settings: BotSettings, model: str, pairs: int | None, max_turns: int) -> None:
        self._submit = submit
        self._settings = settings
        self._model = model
        self._pairs = pairs
        self._max_turns = max_turns
        # Rate limits are stored separately, because discarding a conversation must not reset its rate limit.
        self._rate_limit = RateLimit(settings.messages_per_minute, MAX_CONVERSATIONS)
        self._chats = Recent[str, _Chat](settings.conversations, 60 * settings.forget_minutes)

    async def answer(self, conversation_id: str, text: str) -> str:
        """Return the reply to a message, creating the conversation if necessary. Raises RefusedError."""
        if (wait := self._rate_limit.wait(conversation_id)) > 0:
            notice = TOO_MANY.format(wait=pluralize(wait, "second"), seconds=wait)
            raise RefusedError(notice if self._rate_limit.is_first_refusal(conversation_id) else "")
        chat = self._chats.get(conversation_id) or _Chat(Conversation(self._max_turns))
        self._chats.put(conversation_id, chat)
        async with chat.lock:
            command = text.strip().partition(" ")[0].lower()
            if command in ("/start", "/help"):
                return help_text(self._pairs)
            if command == "/reset":
                chat.conversation.exchanges.clear()
                return RESET
            if command in ("/good", "/bad"):
                return await self._rate(conversation_id, chat.conversation, "good" if command == "/good" else "bad")
            return await self._reply(conversation_id, chat.conversation, text)

    async def _reply(self, conversation_id: str, conversation: Conversation, text: str) -> str:
        question = Question(text, *conversation.context(), client=conversation_id)
        try:
            messages = stream_replies(self._submit, [question], self._settings.reply_seconds)
            async with contextlib.aclosing(messages):
                pieces = [message async for message in messages if isinstance(message, Piece)]
        except BusyError:
            raise RefusedError(BUSY) from None
        except asyncio.TimeoutError:
            raise RefusedError(TOO_SLOW) from None
        except Exception as error:  # A failure of the model must not stop the bot.
            # The error message is not printed, because it may contain the user's text.
            frames = traceback.extract_tb(error.__traceback__)[-1:]
            location = "".join(f" at {frame.filename}:{frame.lineno}" for frame in frames)
            print(f"error: no reply: {type(error).__name__}{location}", file=sys.stderr)
            raise RefusedError(FAILED) from error
        reply = "".join(piece.text for piece in pieces)
        if reply != EMPTY_QUESTION_REPLY:
            conversation.add(text, reply, origin=pieces[-1].origin if pieces else Origin())
            # Discard old messages, which the model will not read again.
            del conversation.exchanges[: -1 - self._max_turns]
        return reply

    async def _rate(self, conversation_id: str, conversation: Conversation, rating: Rating) -> str:
        if conversation.last is None:
            return NOT_RATED
        path = Path(self._settings.ratings)
        try:
            await asyncio.to_thread(rate_last, path, conversation, rating, self._model, conversation_id)
        except UserError as error:
            print(f"error: {error}", file=sys.stderr)
            return NOT_SAVED
        return RATED


def help_text(pairs: int | None) -> str:
    """Return the text of /help, which mentions the number of training pairs unless `pairs` is None."""
    english = "question-answer pair"
    chinese = "问答对"
    if pairs is None:
        return HELP.format(english=f"{english}s", chinese=chinese)
    return HELP.format(english=pluralize(pairs, english), chinese=f" {pairs:,} 个{chinese}")
