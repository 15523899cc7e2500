"""Chat exports in layouts of older versions, and what applications add to the texts of messages."""

import json
from pathlib import Path

import pytest

from chatbot.corpus.reading.report import UNUSED_TURNS
from tests.corpus.reading.formats.test_chat_exports import NOTICES
from tests.corpus.reading.sample_files import conversations_of, dropped, written

VARIANTS: dict[str, tuple[str, str, list[list[str]], dict[str, int]]] = {
    "attachments with captions, and edited messages": (
        "whatsapp",
        "[31.12.20, 21:15:03] Anna: Schau \u200e<Anhang: 1.jpg>\n"
        "[31.12.20, 21:15:09] Ben: Ja \u200e<Bearbeitet am 1.1.>\n",
        [["Schau", "Ja"]],
        {},
    ),
    "deleted messages": (
        "whatsapp",
        "1.1.20, 10:00 - A: a\n1.1.20, 10:01 - B: Diese Nachricht wurde gelöscht.\n"
        "1.1.20, 10:02 - B: 您已删除这条消息\n1.1.20, 10:03 - B: 此消息已被删除\n"
        "1.1.20, 10:04 - B: Verpasster Sprachanruf\n1.1.20, 10:05 - B: b\n",
        [["a", "b"]],
        {NOTICES: 4},
    ),
    "messages that nobody answers before a pause, and between others": (
        "whatsapp",
        "1.1.20, 08:00 - A: a\n1.1.20, 12:00 - A: b\n1.1.20, 12:01 - B: c\n1.1.20, 18:00 - B: d\n",
        [["b", "c"]],
        {UNUSED_TURNS: 2},
    ),
    "the newest message first": (
        "whatsapp",
        "1.1.20, 18:01 - B: d\n1.1.20, 18:00 - A: c\n1.1.20, 10:01 - B: b\n1.1.20, 10:01 - A: a\n",
        [["a", "b"], ["c", "d"]],
        {},
    ),
    "one person": (
        "whatsapp",
        "1.1.20, 10:00 - A: a\n1.1.20, 10:01 - A: b\n",
        [],
        {"chats in which nobody answers": 1},
    ),
    "Telegram before 2021": (
        "telegram",
        json.dumps(
            {
                "messages": [
                    {"type": "message", "date": "2019-01-01T10:00:00", "from": name, "from_id": number, "text": name}
                    for number, name in enumerate("ab")
                ]
            }
        ),
        [["a", "b"]],
        {},
    ),
}


@pytest.mark.parametrize(("format_name", "content", "expected", "counts"), VARIANTS.values(), ids=VARIANTS.keys())
def test_variants_of_exports_are_conversations(
    tmp_path: Path, format_name: str, content: str, expected: list[list[str]], counts: dict[str, int]
) -> None:
    found, report = conversations_of(written(tmp_path, "a.txt", content))
    assert found == expected
    assert report.formats == [format_name]
    assert dropped(report) == counts
