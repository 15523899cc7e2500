"""From the body of a request to questions to the engine."""

import dataclasses
import secrets
from collections.abc import Iterable, Sequence

from chatbot.chat.server.requests import ChatRequest, CompletionRequest, ContentPart, DecodingFields, Message
from chatbot.config.decoding import SAMPLED, SAMPLING, DecodingSettings, over_default
from chatbot.inference.batching.question import Question
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


def prompts_of(body: CompletionRequest) -> list[str]:
    """Return the prompts."""
    return [body.prompt] if isinstance(body.prompt, str) else body.prompt


def last_turns(messages: Sequence[Message], turns: int) -> tuple[str, tuple[str, ...]]:
    """Return the last question of the user, and at most as many turns before it, the oldest first.

    Consecutive messages of one role are one turn. Messages after the last one of the user are ignored; without one,
    the question is empty.
    """
    merged: list[tuple[str, list[str]]] = []  # the newest first
    for message in reversed(messages):
        if message.role not in {"user", "assistant"} or (not merged and message.role == "assistant"):
            continue
        if merged and merged[-1][0] == message.role:
            merged[-1][1].insert(0, text_of(message.content))
        elif len(merged) <= turns:
            merged.append((message.role, [text_of(message.content)]))
        else:
            break
    texts = [_cut(parts) for _, parts in merged]
    return (texts[0], tuple(texts[:0:-1])) if texts else ("", ())


def text_of(content: str | Iterable[ContentPart] | None) -> str:
    """Return the text of a message's content. Parts without text, such as images, have none."""
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(part.text for part in content if part.type == "text" and part.text)


def decoding_of(body: DecodingFields, searches: Searches) -> DecodingSettings | None:
    """Return the settings of greedy search or of sampling that a request asks for; None: the model's own search.

    temperature, top_p, top_k and min_p choose the search. The other fields alone change the model's own search,
    reduced to one hypothesis: greedy search in place of beam search, and one sample in place of the best of several.
    More replies than the model's own search finds are sampled, each for itself.
    """
    sampling = {
        "temperature": body.temperature,
        "top_p": body.top_p,
        "top_k": min(body.top_k, MOST_TOKENS) if body.top_k and body.top_k > 0 else None,
        "min_p": body.min_p or None,
    }
    penalties = {name: value for name in ("presence_penalty", "frequency_penalty") if (value := getattr(body, name))}
    stop = stops_of(body.stop)
    too_many = searches.own.hypotheses > 1 and (body.n or 1) > searches.own.hypotheses
    own = one_sample(searches.own) if too_many else one_hypothesis(searches.own)
    if any(value is not None for value in sampling.values()):
        greedy = body.top_p == 0 or (body.temperature is not None and body.temperature < LEAST_TEMPERATURE)
        base = _without_search(searches.given)
        chosen = {"beam_size": 1} if greedy else sampling
        seed = secrets.randbelow(SEEDS) if body.seed is None else body.seed % SEEDS
    elif too_many or stop or penalties or (body.seed is not None and own.samples):
        base, chosen = own, {}
        seed = own.seed if body.seed is None else body.seed % SEEDS
    else:
        return None
    return dataclasses.replace(base, **chosen, **penalties, seed=seed, stop=(*base.stop, *stop))


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
    return Question(
        text[:MAX_CHARACTERS],
        decoding=decoding_of(body, searches),
        replies=body.n or 1,
        max_tokens=_most_tokens(body.max_tokens),
        streams=bool(body.stream),
    )


def _most_tokens(value: int | None) -> int | None:
    return None if value is None else min(value, MOST_TOKENS)


def _cut(parts: Sequence[str]) -> str:
    return "\n".join(parts)[:MAX_CHARACTERS]
