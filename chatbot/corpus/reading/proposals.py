"""Which map the names of fields and columns suggest, and the doubt that they leave."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from chatbot.corpus.reading import names
from chatbot.corpus.reading.doubts import MANY, doubt_of
from chatbot.corpus.reading.mapping import quoted, written
from chatbot.corpus.reading.marked_text import labelled, said_in, separated
from chatbot.corpus.reading.texts import NO, YES, alternatives, text_of
from chatbot.corpus.reading.times import form_of, seconds
from chatbot.display import one_line

# Fields in which a list of texts is a conversation; under another name it may be a list of anything.
SURE = ("dialog", "dialogue", "conversation", "conversations", "utterances", "turns", "messages", "对话")
MARKED = ("text", "plaintext", "chat", *SURE)  # fields with a conversation in one text
Proposal = tuple[str, str] | None  # a map, and the doubt


def proposed(group: Sequence[Any]) -> tuple[str, str]:
    """Return the map that the names of values of one shape suggest, and the doubt; ("", "") without one."""
    first = group[0]
    if isinstance(first, list):
        are_texts = len(first) > 1 and all(isinstance(text, str | None) for value in group for text in value)
        return ("@", _doubt_of_labels(group)) if are_texts else ("", "")
    if isinstance(first, str):
        return ("@", "") if all(said_in(text) or separated(text) for text in group) else ("", "")
    if not isinstance(first, dict):
        return "", ""
    fields = {names.key_of(name): name for name in reversed(first)}
    return (
        _split_table(first)
        or _conversation(group, fields)
        or _record(group, fields)
        or marked(group, fields)
        or message(group, fields)
        or _reply(group, fields)
        or ("", "")
    )


class Record(NamedTuple):
    """The fields of a question and its answer."""

    fields: dict[str, str]  # from question, input, answer and history to a field
    phrasings: list[str]  # fields with other questions
    doubt: str

    @property
    def expression(self) -> str:
        """The map of these fields."""
        if not self.phrasings:
            return written(self.fields)
        asked = ", ".join(map(quoted, filter(None, [self.fields["question"], *self.phrasings])))
        others = written({**self.fields, "question": ""}).removeprefix("{")
        return "{question: [" + asked + "][], " + others


def record(group: Sequence[Mapping[str, Any]], fields: dict[str, str]) -> Record | None:
    """Return the fields of a question and an answer, if both are named. fields: names as `names.key_of` has them."""
    if "b" in fields:
        fields = {key: field for key, field in fields.items() if key != "a"}  # a choice, beside b
    answer = names.first_of(names.ANSWERS, fields)
    question, person = (names.first_of(choice, fields) for choice in (names.QUESTIONS, names.ASKING_PEOPLE))
    if not answer:
        question = person
        answer = names.first_of(names.ANSWERING_PEOPLE, fields)
        doubt = "these may be the names of people" if len(fields) > 2 else ""
        return Record({"question": question, "answer": answer}, [], doubt) if question and answer else None
    history = fields.get(names.HISTORY, "")
    context = fields.get("context", "")
    phrasings = [fields[name] for name in names.PHRASINGS if name in fields]
    doubt = ""
    parts = group[0].get(context)
    if not history and isinstance(parts, list) and all(isinstance(part, str) for part in parts) and any(parts):
        history = context
        doubt = f"{context!r} may be passages, not turns" if question else ""
    if not question and not history and not phrasings:
        text = names.first_of(
            (*names.TEXTS, *names.TITLES), {key: field for key, field in fields.items() if field != answer}
        )
        question = text or person
        doubt = f"the question may be {text!r} or {person!r}" if text and person else ""
    if not (question or history or phrasings) or not _are_texts(group, question, answer):
        return None
    verdict = names.first_of(names.VERDICTS, fields)
    if verdict and len({text_of(value.get(verdict)) for value in group}) > 1:
        doubt = f"{verdict!r} may say which answers are right"
    inputs = [fields[name] for name in names.INPUTS if fields.get(name, answer) not in (question, answer, history)]
    inputs = [name for name in inputs if all(isinstance(value.get(name), str | None) for value in group)][:1]
    given = {"question": question, "input": "".join(inputs), "answer": answer, "history": history}
    unknown = [field for key, field in fields.items() if field and key not in names.KNOWN]
    sides = {names.key_of(question), names.key_of(answer)}
    are_sides = not sides <= {*names.SIDES} and names.key_of(question) not in names.TEXTS
    if sides <= {*names.OF_TRANSLATIONS}:
        doubt = doubt or "these may be translations"
    if unknown and not are_sides and not doubt:
        doubt = _unknown(unknown)
    return Record(given, phrasings, doubt)


def _are_texts(group: Sequence[Mapping[str, Any]], question: str, answer: str) -> bool:
    """Return whether these fields have texts, and lists only where they can be phrasings and answers."""
    asked = [value.get(question) for value in group]
    answers = [value.get(answer) for value in group]
    if not any(map(alternatives, answers)) or (question and not any(isinstance(each, str | list) for each in asked)):
        return False
    if any(isinstance(each, int | float) for each in answers) and names.key_of(answer) in ("target", "tgt"):
        return False  # labels
    return not isinstance(asked[0], list) or names.key_of(question) in names.SEVERAL


def _record(group: Sequence[Mapping[str, Any]], fields: dict[str, str]) -> Proposal:
    found = record(group, fields)
    if found is None:
        return None
    return found.expression, doubt_of_record(found, group, "field")


def doubt_of_record(found: Record, group: Sequence[Mapping[str, Any]], column: str) -> str:
    """Return the doubt about the names of these fields, or else about their values. column: what a field is called."""
    if found.doubt or names.key_of(found.fields["question"]) in names.INSTRUCTIONS:
        return found.doubt
    fields = [found.fields[side] for side in ("question", "input") if found.fields.get(side)]
    asked = [_on_a_line([value.get(field) for field in fields]) for value in group]
    answers = [_on_a_line(value.get(found.fields["answer"])) for value in group]
    return doubt_of([*zip(asked, answers, strict=True)], column, least=MANY)


def _unknown(fields: Sequence[str]) -> str:
    return f"nothing is known of {one_line(fields[0], 20)}{', ...' if len(fields) > 1 else ''}"


def _on_a_line(value: object) -> str:
    return " ".join(text_of(value).split())


def _conversation(group: Sequence[Mapping[str, Any]], fields: dict[str, str]) -> Proposal:
    """Propose the list of turns in a field with a known name."""
    for name in names.CONVERSATIONS:
        lists = [value[fields[name]] for value in group if name in fields]
        turns = [turn for each in lists if isinstance(each, list) for turn in each]
        if not turns:
            continue
        field = quoted(fields[name])
        if all(isinstance(turn, str) for turn in turns):
            known = (*names.COUNTERS, *names.IDS, *names.CHATS, *names.TIMES, name)
            beside = [each for key, each in fields.items() if key not in known and isinstance(group[0][each], str)]
            doubt = _unknown(beside) if beside else _doubt_of_labels([each for each in lists if isinstance(each, list)])
            return (field, doubt) if name in SURE else None
        are_twos = all(isinstance(turn, list) and [*map(type, turn)] == [str, str] for turn in turns)
        if are_twos and name != "conversations":  # several conversations, in ChatterBot's corpus
            return f"{field}[*].{{speaker: [0], text: [1]}}", "two texts may be a name and what it says, or a pair"
        if all(isinstance(turn, dict) for turn in turns):
            inner = {names.key_of(key): key for turn in turns for key in reversed(turn)}
            if name in SURE and (sides := record(turns, inner)):
                question, answer = (quoted(sides.fields[side]) for side in ("question", "answer"))
                user, assistant = (
                    f'{{role: `"{role}"`, text: {text}}}' for role, text in (("user", question), ("assistant", answer))
                )
                return f"{field}[].[{user}, {assistant}][]", sides.doubt
            expression, doubt = message(turns, inner, name in SURE) or ("", "")
            if expression and "chat:" not in expression:
                return f"{field}[].{expression}", doubt
    return None


def message(group: Sequence[Mapping[str, Any]], fields: dict[str, str], is_conversation: bool = False) -> Proposal:
    """Propose {speaker, text}, or {role, text} where the roles of a user and an assistant are known.

    is_conversation: whether they stand where a conversation is expected.
    """
    speaker = names.first_of(names.SPEAKERS, fields)
    text = names.first_of((*names.TEXTS, *names.SAID, "parts"), {**fields, names.key_of(speaker): ""})
    chat, time, mine = (names.first_of(choice, fields) for choice in (names.CHATS, names.TIMES, names.MINE))
    flag = "" if speaker or mine else _role_of_flag(group, fields)
    if not (speaker or mine or flag) or names.first_of(names.ANSWERS, fields):
        return None
    said = [str(part) if isinstance(part := value.get(speaker or mine), bool) else text_of(part) for value in group]
    if not (flag or any(said)) or not any(text_of(value.get(text)).strip() for value in group):
        return None
    if flag:
        return f"{{role: {flag}, {written({'text': text, 'chat': chat})[1:]}", _order_of(group, time)
    roles = {*map(names.key_of, said)}
    doubt = _doubt_of_roles(said)
    are_sides = roles & names.ANSWERING and (roles & names.ASKING or roles <= names.ANSWERING)
    if doubt or (roles <= names.ROLES and are_sides):
        return written({"role": speaker, "text": text, "chat": chat}), doubt or _order_of(group, time)
    if roles <= names.ROLES:
        return None
    given = {"speaker": speaker, "text": text, "time": time, "mine": mine, "chat": chat}
    known = {*given.values(), *(fields[name] for name in names.COUNTERS if name in fields)}
    others = dict.fromkeys(name for value in group for name in value if name not in known)
    are_said = mine or names.key_of(speaker) in names.SENDERS
    doubt = ""
    if not all(said):
        doubt = "some messages have no speaker"
    elif others:
        doubt = _unknown([*others])
    elif not (is_conversation or chat or are_said):
        doubt = "these may be comments or posts"
    elif not (is_conversation or chat) and len({*said}) in (1, len(said)):
        doubt = "nobody writes twice, or nobody else"
    return written(given), doubt


def _role_of_flag(group: Sequence[Mapping[str, Any]], fields: Mapping[str, str]) -> str:
    """Return the expression of the role that a field such as is_user tells; "" without one."""
    for key, field in fields.items():
        role = key.removeprefix("is").removeprefix("from")
        values = {str(value.get(field)).casefold(): value.get(field) for value in group}
        if role != key and role in names.ASKING | names.ANSWERING and values.keys() <= YES | NO:
            sides = ("user", "assistant") if role in names.ASKING else ("assistant", "user")
            tests = ((f"{quoted(field)} == `{json.dumps(v, default=str)}`", text in NO) for text, v in values.items())
            return " || ".join(f"{test} && '{sides[is_other]}'" for test, is_other in tests)
    return ""


def _doubt_of_roles(said: Sequence[str]) -> str:
    """Return the doubt about speakers of whom only some are known as roles."""
    unknown = [name for name in said if names.key_of(name) not in names.ROLES]
    is_partly = unknown and len(unknown) < len(said)
    return f"the role {one_line(unknown[0], 20)!r} is not known" if is_partly else ""


def _doubt_of_labels(conversations: Sequence[Sequence[str | None]]) -> str:
    said = ([text or "" for text in texts] for texts in conversations)  # without null
    return _doubt_of_roles([name for texts in said for name, _ in labelled(texts) or ()])


def _order_of(group: Sequence[Mapping[str, Any]], time: str) -> str:
    """Return the doubt about messages of which the newest come first."""
    times = [text_of(value.get(time)) for value in group]
    form, *_ = form_of(times)
    known = [second for text in times if form and (second := seconds(text, form)) is not None]
    is_reversed = len(known) > 1 and known == sorted(known, reverse=True) != sorted(known)
    return "the newest message comes first; reverse the list with reverse(...)" if is_reversed else ""


def marked(group: Sequence[Mapping[str, Any]], fields: dict[str, str]) -> Proposal:
    """Propose the field with a conversation in one text: with the marks of a template, or with names."""
    for name in MARKED:
        texts = [value[fields[name]] for value in group if fields.get(name) in value]
        if len(texts) < len(group) or not all(isinstance(text, str) for text in texts):
            continue
        if all(said_in(text) or separated(text) for text in texts):
            return written({"turns": fields[name]}), ""
        if name in SURE and all(labelled(text.strip().splitlines(), sure=True) for text in texts):
            return written({"turns": fields[name]}), ""
    return None


def _reply(group: Sequence[Mapping[str, Any]], fields: dict[str, str]) -> Proposal:
    """Propose messages that name the one that they answer, which only a declared layout is sure of."""
    key, parent, text = (names.first_of(choice, fields) for choice in (names.IDS, names.PARENTS, names.TEXTS))
    if not (key and parent and text) or not names.first_of((*names.SPEAKERS, *names.TIMES), fields):
        return None
    return written({"id": key, "parent": parent, "text": text}), f"each may answer the one that {parent!r} names"


def _split_table(value: Mapping[str, Any]) -> Proposal:
    """Propose the two columns of a table whose names and rows stand apart, as pandas writes it."""
    columns = value.get("columns")
    rows = value.get("data")
    if not isinstance(columns, list) or not isinstance(rows, list) or not all(isinstance(c, str) for c in columns):
        return None
    places = {names.key_of(column): f"[{place}]" for place, column in enumerate(columns)}
    question, answer = (names.first_of(choice, places) for choice in (names.QUESTIONS, names.ANSWERS))
    return (f"data[*].{{question: {question}, answer: {answer}}}", "") if question and answer else None
