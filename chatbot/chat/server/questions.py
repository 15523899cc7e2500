"""From the body of a request to questions to the engine."""

import dataclasses
import functools
import random
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from chatbot.chat.server.errors import ApiError
from chatbot.chat.server.schemas import (
    MOST_ECHOED,
    MOST_LOG_PROBS,
    ChatRequest,
    CompletionRequest,
    ContentPart,
    DecodingFields,
    Message,
)
from chatbot.config.decoding import SAMPLED, SAMPLING, DecodingSettings, over_default
from chatbot.inference.questions import Question
from chatbot.inference.text_responder import MAX_CHARACTERS

# Below it, probabilities overflow, and greedy search gives the same reply.
LEAST_TEMPERATURE = 0.01
SEEDS = 2**31
# A number without effect, which fits in 32 bits, for larger ones.
MOST_TOKENS = 2**31 - 1


@dataclasses.dataclass(frozen=True)
class Searches:
    """The searches of a model. given: the settings of the command line. own: with the model's default search."""

    given: DecodingSettings
    own: DecodingSettings


def chat_question(body: ChatRequest, searches: Searches, turns: int) -> Question:
    """Return the question of a chat. turns: the number of turns before the question that the model reads."""
    text, history = last_turns(body.messages, turns)
    return dataclasses.replace(
        _question(body, searches, text),
        history=history,
        max_tokens=_most_tokens(body.max_completion_tokens or body.max_tokens),
        top_log_probs=(body.top_logprobs or 0) if body.logprobs else None,
    )


def completion_questions(body: CompletionRequest, searches: Searches) -> list[Question]:
    """Return a question for each prompt."""
    return [
        dataclasses.replace(_question(body, searches, text), top_log_probs=body.logprobs) for text in prompts_of(body)
    ]


def echoes_of(body: CompletionRequest) -> list[str]:
    """Return the texts that the replies to each prompt begin with. Raises ApiError if they are too long in all."""
    if not body.echo:
        return []
    prompts = prompts_of(body)
    size = sum(map(len, prompts)) * (body.n or 1)
    if size > MOST_ECHOED:
        message = f"echo: the replies may repeat at most {MOST_ECHOED:,} characters of prompts in all, not {size:,}"
        raise ApiError(400, message, param="echo", code="invalid_value")
    return prompts


def check_log_probs(questions: Sequence[Question]) -> None:
    """Raise ApiError for more log-probabilities in all replies than are allowed."""
    replies = sum(question.replies for question in questions)
    top = questions[0].top_log_probs
    if top is not None and replies * (top + 1) > MOST_LOG_PROBS:
        message = f"logprobs: with {replies:,} replies, at most {MOST_LOG_PROBS // replies - 1} others are allowed"
        raise ApiError(400, f"{message} for each token, not {top}", param="logprobs", code="invalid_value")


def prompts_of(body: CompletionRequest) -> list[str]:
    """Return the prompts."""
    return [body.prompt] if isinstance(body.prompt, str) else body.prompt


def last_turns(messages: Sequence[Message], turns: int) -> tuple[str, tuple[str, ...]]:
    """Return the last question of the user, and at most as many turns before it, the oldest first.

    Consecutive messages of one role are one turn. Messages after the last one of the user are ignored; without one,
    the question is empty.
    """
    merged: list[tuple[str, list[str]]] = []  # the newest first, as the texts of each
    for message in reversed(messages):
        if message.role not in {"user", "assistant"} or (not merged and message.role == "assistant"):
            continue
        if merged and merged[-1][0] == message.role:
            merged[-1][1].append(text_of(message.content))
        elif len(merged) <= turns:
            merged.append((message.role, [text_of(message.content)]))
        else:
            break
    texts = [_cut(parts[::-1]) for _, parts in merged]
    return (texts[0], tuple(texts[:0:-1])) if texts else ("", ())


def text_of(content: str | Iterable[ContentPart] | None) -> str:
    """Return the text of a message's content. Parts without text, such as images, have none."""
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(part.text for part in content if part.type == "text" and part.text)


class Sampling(NamedTuple):
    """The fields of a request that choose its search; None: not given."""

    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None


class Penalties(NamedTuple):
    """The fields of a request that change the probabilities of repeated tokens."""

    presence_penalty: float
    frequency_penalty: float


@functools.lru_cache(maxsize=256)  # the settings are checked when they are made, and few differ
def decoding_of(
    searches: Searches, sampling: Sampling, penalties: Penalties, replies: int, changes: bool
) -> DecodingSettings | None:
    """Return the settings of greedy search or of sampling that a request asks for; None: the model's own search.

    The fields of `sampling` choose the search. The others alone change the model's own search, reduced to one
    hypothesis: greedy search in place of beam search, and one sample in place of the best of several. More replies
    than the model's own search finds are sampled, each for itself. changes: whether there are other such fields.
    """
    own, given = searches.own, {name: value for name, value in penalties._asdict().items() if value}
    too_many = own.hypotheses > 1 and replies > own.hypotheses
    if any(value is not None for value in sampling):
        greedy = sampling.top_p == 0 or (sampling.temperature is not None and sampling.temperature < LEAST_TEMPERATURE)
        chosen = {"beam_size": 1} if greedy else sampling._asdict()
        return dataclasses.replace(_without_search(searches.given), **chosen, **given)
    if too_many or given or changes:
        return dataclasses.replace(one_sample(own) if too_many else one_hypothesis(own), **given)
    return None


def stops_of(stop: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the texts that end a reply. A reply is one line of printable text, so other texts never occur in it."""
    texts = [stop] if isinstance(stop, str) else stop or ()
    return tuple(text for text in texts if text and text.isprintable())


def one_hypothesis(decoding: DecodingSettings) -> DecodingSettings:
    """Return settings of greedy search for those of beam search, and of one sample for those of several."""
    return one_sample(decoding) if decoding.samples else dataclasses.replace(_without_search(decoding), beam_size=1)


def one_sample(decoding: DecodingSettings) -> DecodingSettings:
    """Return settings of one sample; for those of beam search, with the default of attempts that sample."""
    if not decoding.samples:
        return over_default(_without_search(decoding), SAMPLED)
    search = {name: getattr(decoding, name) for name in SAMPLING}
    if not any(value is not None for value in search.values()):  # candidates alone sample from all tokens
        search["temperature"] = 1.0
    return dataclasses.replace(_without_search(decoding), **search)


def _without_search(decoding: DecodingSettings) -> DecodingSettings:
    """Return the settings without those of a search: only those of the tokens of a reply, such as banned words."""
    names = ("beam_size", "coverage_penalty", "diverse_groups", "diversity", "candidates", "rerank", "n_best")
    neutral = {name: getattr(DecodingSettings, name) for name in (*names, *SAMPLING)}
    return dataclasses.replace(decoding, **neutral)


def _question(body: DecodingFields, searches: Searches, text: str) -> Question:
    top_k = min(body.top_k, MOST_TOKENS) if body.top_k and body.top_k > 0 else None
    sampling = Sampling(body.temperature, body.top_p, top_k, body.min_p or None)
    penalties = Penalties(body.presence_penalty or 0.0, body.frequency_penalty or 0.0)
    replies, stop = body.n or 1, stops_of(body.stop)
    changes = bool(stop) or (body.seed is not None and searches.own.samples)
    decoding = decoding_of(searches, sampling, penalties, replies, changes)
    seed = None if body.seed is None else body.seed % SEEDS
    if seed is None and any(value is not None for value in sampling):
        seed = random.randrange(SEEDS)
    return Question(
        text[:MAX_CHARACTERS],
        decoding=decoding,
        seed=None if decoding is None else seed,
        stop=() if decoding is None else stop,
        replies=replies,
        max_tokens=_most_tokens(body.max_tokens),
        streams=bool(body.stream),
    )


def _most_tokens(value: int | None) -> int | None:
    return None if value is None else min(value, MOST_TOKENS)


def _cut(parts: Sequence[str]) -> str:
    return "\n".join(parts)[:MAX_CHARACTERS]
