"""A dialogue in one text: "Human: ... Assistant: ...", the templates of language models, and turns with __eou__.

The first mark decides which family of marks divides the text, so that "User:" within an answer that follows
"### Response:" is text.
"""

import re
from collections.abc import Iterable, Sequence

from chatbot.corpus.reading.conversation import Pair, Turn, pairs_of_turns

_ASKS = (
    *("human", "user", "usr", "customer", "prompter", "question", "q", "instruction", "patient"),
    *("用户", "人类", "问题", "问", "提问", "客户", "顾客", "患者", "病人"),
)
_ANSWERS = (
    *("assistant", "chatbot", "chatgpt", "bot", "gpt", "moss", "ai", "response", "answer", "output", "model", "a"),
    *("belle", "doctor", "助手", "机器人", "回答", "答案", "答", "客服", "医生"),
)
_OTHERS = ("system", "input", "context", "系统", "输入")  # an input belongs to the question, a system prompt does not
_INPUTS = frozenset(("input", "context", "输入"))
_TOOLS = ("tool", "function", "observation", "ipython", "function response", "tool response")  # what is left out
_MARKED = "|".join(_TOOLS)
_WORDS = "|".join(sorted((*_ASKS, *_ANSWERS, *_OTHERS), key=len, reverse=True))

# In each, group 1 is the role, or group 2 the end of the user's turn.
_FAMILIES = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"<\|im_start\|>({_WORDS}|{_MARKED})[ \t]*\n?"
        rf"|<\|start_header_id\|>({_WORDS}|{_MARKED})<\|end_header_id\|>",
        rf"<start_of_turn>({_WORDS})\n?",
        rf"<\|({_WORDS}|{_MARKED})\|>[ \t]*:?|<(human|bot|user|assistant)>[ \t]*:?",
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
_PREAMBLES = ("### ", "USER:", "<|", "[INST]", "[Human]")


def turns_of(text: str) -> list[Turn] | None:
    """Return the turns of a text that begins with a mark, or has one after a short system prompt; None for others.

    The text of the last turn may be empty, for an answer that stands elsewhere.
    """
    if (text[:1] not in _STARTS or _FIRST.match(text) is None) and not any(mark in text for mark in _PREAMBLES):
        return None
    for family in (*_FAMILIES, _INLINE):
        marks = list(family.finditer(text))
        if not marks:
            continue
        sides = [_role(mark) for mark in marks]
        before = _ENDS.sub("", text[: marks[0].start()]).strip()
        if before and (len(before) > _PREAMBLE or not {*_ASKS, "inst"} & {*sides} or len({*sides}) < 2):
            continue
        if before and family is _FAMILIES[-1]:
            continue  # words with a colon occur within any text
        if sides[0] in _ANSWERS and not {*_ASKS} & {*sides}:
            continue
        ends = [*(mark.start() for mark in marks[1:]), len(text)]
        return _joined([(side, text[mark.end() : end]) for side, mark, end in zip(sides, marks, ends, strict=True)])
    return None


def _role(mark: re.Match[str]) -> str:
    return next(group for group in mark.groups() if group).casefold()


def _joined(parts: Sequence[tuple[str, str]]) -> list[Turn]:
    """Return the turns without system prompts; consecutive parts of one side are one turn."""
    turns: list[Turn] = []
    for role, part in parts:
        if (role in _OTHERS and role not in _INPUTS) or role in _TOOLS:
            continue
        asks = role in _ASKS or role in _INPUTS or role == "inst"
        text = _ENDS.sub("", _SYSTEM.sub("", part) if "<<SYS>>" in part else part).strip()
        if not asks and (called := _CALL.sub("", text)) != text:
            text = called.strip()
            if not text:
                continue
        if turns and turns[-1].asks == asks:
            turns[-1] = side(asks, f"{turns[-1].text}\n{text}".strip())
        else:
            turns.append(side(asks, text))
    return turns


def without_mark(text: str) -> str:
    """Return an answer without the mark that says that it is one, such as "Assistant: " and "<|im_end|>"."""
    match = _FAMILIES[-1].match(text.lstrip())
    if match and _role(match) in _ANSWERS:
        text = text.lstrip()[match.end() :]
    return _ENDS.sub("", text).strip()


def side(asks: bool, text: str) -> Turn:
    """Return a turn of the side that asks or of the one that answers."""
    return Turn(text, asks, not asks)


def pairs_of_dialogue(turns: Iterable[Turn]) -> list[Pair]:
    """Return the pairs of a dialogue whose turns may be empty."""
    return [*pairs_of_turns(turn if turn.text else Turn("", False, False) for turn in turns)]


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
    names = {name.casefold() for name, _ in turns}
    if len(turns) < max(2, len(utterances)) or not 1 < len(names) <= 6:
        return None
    known = names <= {*_ASKS, *_ANSWERS} and bool(names & {*_ASKS}) and bool(names & {*_ANSWERS})
    return turns if known or len(turns) >= (len(names) + 1 if sure else 2 * len(names)) else None


def role_of(label: str) -> str:
    """Return "user" or "assistant" for a label that means either, and any other label as it is."""
    name = label.casefold()
    return "user" if name in _ASKS else "assistant" if name in _ANSWERS else label
