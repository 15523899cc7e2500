"""A dialogue in one text: "Human: ... Assistant: ...", the templates of language models, and turns with __eou__.

The first mark decides which family of marks divides the text, so that "User:" within an answer that follows
"### Response:" is text.
"""

import functools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from chatbot.corpus.reading.conversation import Pair
from chatbot.corpus.reading.names import ANSWERING, ASKING, CLASSES, UNHEARD
from chatbot.corpus.reading.report import ReadOptions, Report
from chatbot.corpus.reading.text_file import TextFile, decoded, whole_text
from chatbot.corpus.reading.turns import pairs_of_roles

_ASKS = (*ASKING, *CLASSES["asking_people"], "question", "q", "instruction", "问题", "提问")
_ANSWERS = (*ANSWERING, *CLASSES["answering_people"], "response", "answer", "output", "a", "belle", "回答", "答案")
_INPUTS = ("input", "context", "输入")  # which belong to the question
_PROMPTS = ("system", "系统")
_LEFT_OUT = frozenset((*UNHEARD, "function response", "tool response"))
_QUESTION = frozenset((*_ASKS, *_INPUTS, "inst"))
_WORDS = "|".join(sorted((*_ASKS, *_ANSWERS, *_INPUTS, *_PROMPTS), key=len, reverse=True))
_MARKED = "|".join((*sorted(_LEFT_OUT, key=len, reverse=True), _WORDS))

# In each, group 1 is the role, or group 2 the end of the user's turn.
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
_INLINE = re.compile(r"(?:^|(?<=\s)|(?<=</s>))(USER|ASSISTANT):")  # of Vicuna, after a system prompt
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
_PREAMBLE = 2000  # characters of a system prompt before the first mark
TEMPLATES = ("<|", "### ", "[INST]", "<s>", "<start_of_turn>", "[Human]")  # what models' templates begin with


def said_in(text: str) -> list[tuple[str, str]] | None:
    """Return (role, text) of a text that begins with a mark, or has one after a short system prompt; None for others.

    The last text may be empty, for an answer that stands elsewhere.
    """
    marks = _family_of(text)
    return [*_said(text, marks)] if marks else None


def _family_of(text: str) -> re.Pattern[str] | None:
    """Return the marks that divide a text; None for a text without any."""
    if (text[:1] not in _STARTS or _FIRST.match(text) is None) and not any(
        mark in text for mark in (*TEMPLATES, "USER:")
    ):
        return None
    for family in (*_FAMILIES, _INLINE):
        first = family.search(text)
        if first is None:
            continue
        roles = {*map(_role, family.finditer(text))}
        before = _ENDS.sub("", text[: first.start()]).strip()
        if before and (len(before) > _PREAMBLE or family is _FAMILIES[-1] or len(roles) < 2):
            continue  # words with a colon occur within any text
        if not (before or _role(first) in _ANSWERS) or roles & {*_ASKS, "inst"}:
            return family
    return None


def _role(mark: re.Match[str]) -> str:
    return mark[mark.lastindex or 0].casefold()


def _said(text: str, family: re.Pattern[str]) -> Iterator[tuple[str, str]]:
    """Yield (role, text) of a user, an assistant and a system."""
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
    """Return whether a text that begins like this has the marks of a language model's template around its turns."""
    return text.sample.lstrip().startswith(TEMPLATES) and any(pairs_of_roles(said_in(text.sample) or [], Report().drop))


def read_template(text: TextFile, options: ReadOptions, report: Report) -> Iterator[Pair]:
    """Yield the pairs of users and assistants. Raises UserError for a text that is too large."""
    marks = _family_of(text.sample)
    said = _said(whole_text(text, "templates"), marks) if marks else ()
    drop = functools.partial(report.drop, place=text.place)
    return decoded(pairs_of_roles(said, drop), text, report, drop)


def without_mark(text: str) -> str:
    """Return an answer without the mark that says that it is one, such as "Assistant: " and "<|im_end|>"."""
    match = _FAMILIES[-1].match(text.lstrip())
    if match and _role(match) in _ANSWERS:
        text = text.lstrip()[match.end() :]
    return _ENDS.sub("", text).strip()


def separated(text: str) -> list[str] | None:
    """Return the utterances of a text in which marks such as __eou__ separate them; None for any other text."""
    for mark in _SEPARATORS:
        if mark in text:
            parts = (part.replace("__eou__", " ").strip() for part in text.split(mark))
            utterances = [part for part in parts if part]
            return utterances if len(utterances) > 1 else None
    return None


def labelled(utterances: Sequence[str], sure: bool = False) -> list[tuple[str, str]] | None:
    """Return (speaker, text) of utterances that all begin with a speaker, such as "patient: "; None for others.

    sure: whether they are known to be a conversation; else each unknown speaker must speak twice.
    """
    matches = [_LABEL.match(utterance) for utterance in utterances]
    turns = [(match[1].strip(), text[match.end() :]) for match, text in zip(matches, utterances, strict=True) if match]
    names = {name.casefold() for name, _ in turns} - _LEFT_OUT
    if len(turns) < max(2, len(utterances)) or not 1 < len(names) <= 6:
        return None
    known = names <= {*_ASKS, *_ANSWERS} and bool(names & {*_ASKS}) and bool(names & {*_ANSWERS})
    return turns if known or sure or len(turns) >= 2 * len(names) else None


def speakers(names: Iterable[str], texts: int) -> set[str]:
    """Return those of the words before texts that are names: which come again, or all where each text has one."""
    counts = Counter(names)
    return {name for name, count in counts.items() if count > 1 or counts.total() == texts}
