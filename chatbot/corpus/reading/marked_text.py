"""Splits texts that contain a whole dialogue: "Human: ... Assistant: ...", chat templates, and turns with __eou__.

Marks belong to families, such as "Human:" and "Assistant:". A text is split only at marks of the same family as its
first mark. For example, if a text begins with "### Instruction:", a later "User:" is ordinary text.
"""

import functools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from chatbot.corpus.reading.names import ANSWERING, ASKING, CLASSES, UNHEARD
from chatbot.corpus.reading.report import ReadOptions, Report
from chatbot.corpus.reading.text_file import TextFile, drop_undecodable, read_whole_text
from chatbot.corpus.reading.turns import Pair, pairs_of_roles

_ASKS = (*ASKING, *CLASSES["asking_people"], "question", "q", "instruction", "问题", "提问")
_ANSWERS = (*ANSWERING, *CLASSES["answering_people"], "response", "answer", "output", "a", "belle", "回答", "答案")
_INPUTS = ("input", "context", "输入")  # marks of additional texts that belong to the question
_PROMPTS = ("system", "系统")
_LEFT_OUT = frozenset((*UNHEARD, "function response", "tool response"))
_QUESTION = frozenset((*_ASKS, *_INPUTS, "inst"))
_WORDS = "|".join(sorted((*_ASKS, *_ANSWERS, *_INPUTS, *_PROMPTS), key=len, reverse=True))
_MARKED = "|".join((*sorted(_LEFT_OUT, key=len, reverse=True), _WORDS))

# The families of marks. In each regular expression, the last matching group is the role.
_FAMILIES = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"<\|im_start\|>({_MARKED})[ \t]*\n?"
        rf"|<\|start_header_id\|>({_MARKED})<\|end_header_id\|>",
        rf"<start_of_turn>({_WORDS})\n?",
        rf"<\|({_MARKED})\|>[ \t]*:?|<(human|bot|user|assistant)>[ \t]*:?",
        rf"(?:\n|^|(?<=<eo[a-z]>))[ \t]{{0,3}}\[({_WORDS})\][:：]?",
        r"(?:<s>)?\[(/?INST)\]",
        rf"(?:\n|^|(?<=\S))[ \t]{{0,3}}#{{2,4}} ?({_WORDS})(?:[:：]|(?=\s|$))",
        rf"(?:\n|^)[ \t]{{0,3}}(?:\*\*)?({_WORDS}|(?:function|tool) response)(?:\*\*)?[ \t]{{0,2}}[:：](?:\*\*)?",
    )
)
_INLINE = re.compile(r"(?:^|(?<=\s)|(?<=</s>))(USER|ASSISTANT):")  # Vicuna's marks, which also occur inside lines
_SYSTEM = re.compile(r"<<SYS>>.*?(?:<</SYS>>|\Z)", re.DOTALL)
_ENDS = re.compile(
    r"(?:<\|im_end\|>|<\|endoftext\|>|<\|eot_id\|>|<\|begin_of_text\|>|<\|end\|>|<end_of_turn>|<eo[a-z]>|</?s>"
    r"|<[be]os>|\[MASK\])"
)
_CALL = re.compile(r"<functioncall>.*|<tool_call>.*?(?:</tool_call>|\Z)", re.DOTALL)
_FIRST = re.compile(rf"\s*(?:<|\[|#|\*\*|(?:{_WORDS})[\s*]{{0,4}}[:：])", re.IGNORECASE)
_STARTS = frozenset("".join(word[0] + word[0].upper() for word in _WORDS.split("|")) + "<[#* \t\r\n\u3000")
_SEPARATORS = ("__eot__", "__eou__", "<|endoftext|>", "[SEP]", "<sep>")
_LABEL = re.compile(r"\s*([^:：\s][^:：\n]{0,19})[:：]\s*")
_PREAMBLE = 2000  # maximum characters of a system prompt before the first mark
TEMPLATES = ("<|", "### ", "[INST]", "<s>", "<start_of_turn>", "[Human]")  # prefixes of chat templates


def split_dialogue(text: str) -> list[tuple[str, str]] | None:
    """Split a dialogue that begins with a mark, or with a short system prompt.

    Returns:
        The role and the text of each turn, or None if the text is not a dialogue. The last text may be empty, because
        some corpora store the last answer in another field.
    """
    marks = _find_family(text)
    return [*_split_by_family(text, marks)] if marks else None


def _find_family(text: str) -> re.Pattern[str] | None:
    """Return the family of marks that occurs first in a text, or None if the text is not a dialogue."""
    if (text[:1] not in _STARTS or _FIRST.match(text) is None) and not any(
        mark in text for mark in (*TEMPLATES, "USER:")
    ):
        return None
    for family in (*_FAMILIES, _INLINE):
        first = family.search(text)
        if first is None:
            continue
        roles = {*map(_role, family.finditer(text))}
        preamble = _ENDS.sub("", text[: first.start()]).strip()
        if preamble and (len(preamble) > _PREAMBLE or family is _FAMILIES[-1] or len(roles) < 2):
            continue  # Words with a colon occur in any text.
        if not (preamble or _role(first) in _ANSWERS) or roles & {*_ASKS, "inst"}:
            return family
    return None


def _role(mark: re.Match[str]) -> str:
    return mark[mark.lastindex or 0].casefold()


def _split_by_family(text: str, family: re.Pattern[str]) -> Iterator[tuple[str, str]]:
    """Yield the role ("user", "assistant" or "system") and the text of each turn."""
    last = ("", "")
    marks = family.finditer(text)
    mark = next(marks, None)
    while mark:
        following = next(marks, None)
        role = _role(mark)
        part = text[mark.end() : following.start() if following else len(text)]
        mark = following
        part = _ENDS.sub("", _SYSTEM.sub("", part) if "<<SYS>>" in part else part).strip()
        if last[0] == "user" and role in _INPUTS:
            last = ("user", f"{last[1]}\n{part}".strip())
            continue
        if last[0]:
            yield last
        side = "system" if role in _LEFT_OUT else "user" if role in _QUESTION else "assistant"
        last = (side, part if side == "user" else _CALL.sub("", part).strip())
    if last[0]:
        yield last


def is_template(text: TextFile) -> bool:
    """Return whether a text begins with a mark of a chat template and contains at least one pair."""
    return text.sample.lstrip().startswith(TEMPLATES) and any(
        pairs_of_roles(split_dialogue(text.sample) or [], Report().drop)
    )


def read_template(text: TextFile, options: ReadOptions, report: Report) -> Iterator[Pair]:
    """Yield the pairs of a text with chat template marks. Raises UserError if the text is too large."""
    marks = _find_family(text.sample)
    turns = _split_by_family(read_whole_text(text, "templates"), marks) if marks else ()
    drop = functools.partial(report.drop, place=text.place)
    return drop_undecodable(pairs_of_roles(turns, drop), text, report, drop)


def strip_mark(text: str) -> str:
    """Remove marks such as "Assistant: " and "<|im_end|>" from an answer."""
    match = _FAMILIES[-1].match(text.lstrip())
    if match and _role(match) in _ANSWERS:
        text = text.lstrip()[match.end() :]
    return _ENDS.sub("", text).strip()


def split_utterances(text: str) -> list[str] | None:
    """Split a text at marks such as __eou__. Returns None if there are fewer than two utterances."""
    for mark in _SEPARATORS:
        if mark in text:
            parts = (part.replace("__eou__", " ").strip() for part in text.split(mark))
            utterances = [part for part in parts if part]
            return utterances if len(utterances) > 1 else None
    return None


def split_by_speaker(utterances: Sequence[str], sure: bool = False) -> list[tuple[str, str]] | None:
    """Split utterances that all begin with the name of a speaker, such as "patient: ".

    Args:
        utterances: The utterances of a possible conversation.
        sure: Whether the utterances are known to be a conversation. If not, unknown speakers must speak twice on
            average.

    Returns:
        The speaker and the text of each utterance, or None if they do not all begin with a name.
    """
    matches = [_LABEL.match(utterance) for utterance in utterances]
    turns = [(match[1].strip(), text[match.end() :]) for match, text in zip(matches, utterances, strict=True) if match]
    names = {name.casefold() for name, _ in turns} - _LEFT_OUT
    if len(turns) < max(2, len(utterances)) or not 1 < len(names) <= 6:
        return None
    known = names <= {*_ASKS, *_ANSWERS} and bool(names & {*_ASKS}) and bool(names & {*_ANSWERS})
    return turns if known or sure or len(turns) >= 2 * len(names) else None


def speakers(names: Iterable[str], texts: int) -> set[str]:
    """Return which words are names of speakers.

    Args:
        names: The words before a colon at the beginning of texts.
        texts: The number of texts. If every text begins with such a word, all words are names. Otherwise, only words
            that occur more than once are.
    """
    counts = Counter(names)
    return {name for name, count in counts.items() if count > 1 or counts.total() == texts}
