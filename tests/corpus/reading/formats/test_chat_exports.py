"""Exports of chat applications: turns of several messages, pauses, notices, media, and --me."""

import json
from pathlib import Path

import pytest

from chatbot.corpus.reading.formats import json_files, messages
from chatbot.errors import UserError
from tests.corpus.reading.sample_files import conversations_of, dropped, written

NO_TEXT, NOTICES = (
    "messages without text, such as pictures",
    "notices of the application, such as calls and deleted messages",
)

ANDROID = """\
12/31/20, 9:15 PM - Messages and calls are end-to-end encrypted. Tap to learn more.
12/31/20, 9:15 PM - Anna: Are you coming?
12/31/20, 9:16 PM - Ben Miller: Yes
12/31/20, 9:16 PM - Ben Miller: At ten
or later
12/31/20, 9:17 PM - Anna: <Media omitted>
12/31/20, 9:17 PM - Anna: Look: here it is <This message was edited>
12/31/20, 9:18 PM - Ben Miller: This message was deleted
1/1/21, 9:00 AM - Ben Miller: Good morning
1/1/21, 9:01 AM - Anna: Morning!
"""
IOS = """\
[31.12.20, 21:15:03] Familie: \u200eNachrichten und Anrufe sind Ende-zu-Ende-verschlüsselt.
[31.12.20, 21:15:03] Anna: Kommst du?
\u200e[31.12.20, 21:15:40] Ben: \u200eBild weggelassen
[31.12.20, 23:59:10] Ben: Ja
[01.01.21, 00:01:10] Anna: Schön
"""
CHINESE = """\
2020/12/31 下午9:15 - 小明: 在吗
2020/12/31 下午9:16 - 小红: 在
2020/12/31 下午9:16 - 小红: 怎么了
2020/12/31 下午9:17 - 小明: <媒体文件已省略>
2020/12/31 下午9:18 - 小明: 没事！
2020/12/31 下午9:18 - 小明: 睡吧
2021/1/1 上午9:18 - 小红: 早
2021/1/1 上午9:19 - 小明: 早
"""
NARROW = (
    "31/12/2020, 9:15\u202fp.\u202fm. - \u202a+49 151 234\u202c: hola\n"
    "31/12/2020, 9:16\u202fp.\u202fm. - Eva: qué tal\n"
)
BRACKETS = "[2020/12/31 21:15:03] Anna: Hi\r\n[2020/12/31 21:15:09] Ben: Hello\r\n"

QQ = """\
消息记录（此消息记录为文本格式，不支持重新导入）

================================================================
消息分组:我的群聊
================================================================
消息对象:同学
================================================================

2020-01-01 12:00:00 系统消息(10000)
小明加入本群。

2020-01-01 12:00:01 【管理员】小明(12345678)
[图片]你们看

2020-01-01 12:00:05 小红<hong@example.com>
[表情]

2020-01-01 12:00:09 小红<hong@example.com>
好看
在哪里

2020-01-01 12:00:30 明明(12345678)
公园

2020-01-01 12:01:30 明明(12345678)
撤回了一条消息

================================================================
消息分组:我的好友
================================================================
消息对象:小刚
================================================================

2020-01-01 12:02:00 小刚
在？

2020-01-01 12:02:10 小明
在的

"""
QQ_COPIED = """\
小明(12345678) 2020/1/1 12:00:00
吃了吗

小红(87654321) 2020/1/1 12:00:20
吃了
"""
QQ_12_HOURS = "2020-01-01 8:43:38 PM 小明(1234567)\n你好\n\n2020-01-01 8:44:09 PM 小红(7654321)\n你好呀\n"

WECHAT = """\
localId,TalkerId,Type,SubType,IsSender,CreateTime,Status,StrContent,StrTime,Remark,NickName,Sender
1,7,1,0,0,1577865600,,在吗,2020-01-01 08:00:00,小红,红红,wxid_hong
2,7,3,0,0,1577865601,,<msg><img/></msg>,2020-01-01 08:00:01,小红,红红,wxid_hong
3,7,1,0,1,1577865602,,在,2020-01-01 08:00:02,,阿明,wxid_ming
4,9,1,0,0,1577865603,,"明天来吗, 老地方",2020-01-01 08:00:03,老王,王,wxid_wang
5,7,1,0,1,1577865604,,怎么了,2020-01-01 08:00:04,,阿明,wxid_ming
6,9,10000,0,0,1577865605,,老王撤回了一条消息,2020-01-01 08:00:05,老王,王,wxid_wang
7,9,1,0,1,1577865606,,来,2020-01-01 08:00:06,,阿明,wxid_ming
8,7,1,0,0,1577899999,,晚安,2020-01-01 17:33:19,小红,红红,wxid_hong
9,7,1,0,1,1577900000,,晚安！,2020-01-01 17:33:20,,阿明,wxid_ming
"""


def message(name: str, text: object, time: int, **others: object) -> dict[str, object]:
    """A message of Telegram's."""
    return {
        "id": time,
        "type": "message",
        "date": "2020-01-01T12:00:00",
        "date_unixtime": str(1577880000 + time),
        "from": name,
        "from_id": f"user{ord(name[0])}000",
        "text": text,
        "text_entities": [],
        **others,
    }


PRIVATE: dict[str, object] = {
    "name": "Anna",
    "type": "personal_chat",
    "id": 1,
    "messages": [
        {"id": 0, "type": "service", "actor": "Anna", "actor_id": "user4000", "action": "phone_call", "text": ""},
        message("Anna", ["look at ", {"type": "link", "text": "example.org"}, " please"], 1),
        message("Ben", "", 2, photo="photos/1.jpg"),
        message("Ben", "nice", 3),
        message("Anna", "thanks", 4),
    ],
}
GROUP = {
    "name": "Club",
    "type": "private_group",
    "id": 2,
    "messages": [message("Ben", "hi", 5), message("Eva", "hello", 6)],
}
ACCOUNT = {
    "about": "Here is the data you requested.",
    "personal_information": {"user_id": 1, "first_name": "Ben"},
    "chats": {"about": "", "list": [PRIVATE, GROUP]},
}


def as_json(value: object) -> str:
    """The layout in which Telegram writes."""
    return json.dumps(value, ensure_ascii=False, indent=1)


EXPORTS: dict[str, tuple[str, str, list[list[str]], dict[str, int]]] = {
    "Android": (
        "whatsapp",
        ANDROID,
        [
            ["Are you coming?", "Yes At ten or later", "Look: here it is"],
            ["Good morning", "Morning!"],
        ],
        {NOTICES: 2, NO_TEXT: 1},
    ),
    "iOS": ("whatsapp", IOS, [["Kommst du?", "Ja", "Schön"]], {NO_TEXT: 2}),
    "Chinese": ("whatsapp", CHINESE, [["在吗", "在，怎么了", "没事！睡吧"], ["早", "早"]], {NO_TEXT: 1}),
    "narrow spaces": ("whatsapp", NARROW, [["hola", "qué tal"]], {}),
    "noon": (
        "whatsapp",
        "1/2/20, 11:50 AM - A: a\n1/2/20, 1:10 PM - B: b\n1/2/20, 1:15 PM - A: c\n1/3/20, 12:10 AM - B: d\n",
        [["a", "b", "c"]],
        {},
    ),
    "a dot after the time": (
        "whatsapp",
        "2022/12/14, 13:34. - Anna: Hi : there\n2022/12/14, 13:35. - 🤓: Hello\n",
        [["Hi : there", "Hello"]],
        {},
    ),
    "old iOS": (
        "whatsapp",
        "31/12/15, 9:15:03 PM: Anna: Hi\n31/12/15, 9:15:20 PM: Ben: Hello\n",
        [["Hi", "Hello"]],
        {},
    ),
    "brackets": ("whatsapp", BRACKETS, [["Hi", "Hello"]], {}),
    "QQ": ("qq", QQ, [["你们看", "好看，在哪里", "公园"], ["在？", "在的"]], {NOTICES: 2, NO_TEXT: 1}),
    "QQ, copied": ("qq", QQ_COPIED, [["吃了吗", "吃了"]], {}),
    "QQ, 12 hours": ("qq", QQ_12_HOURS, [["你好", "你好呀"]], {}),
    "Telegram": (
        "telegram",
        as_json(PRIVATE),
        [["look at example.org please", "nice", "thanks"]],
        {NO_TEXT: 1, NOTICES: 1},
    ),
    "Telegram, one line": ("telegram", json.dumps(GROUP), [["hi", "hello"]], {}),
    "Telegram, account": (
        "telegram",
        as_json(ACCOUNT),
        [["look at example.org please", "nice", "thanks"], ["hi", "hello"]],
        {NO_TEXT: 1, NOTICES: 1},
    ),
    "WeChat": (
        "messages",
        WECHAT,
        [["在吗", "在，怎么了"], ["晚安", "晚安！"], ["明天来吗, 老地方", "来"]],
        {NO_TEXT: 1, NOTICES: 1},
    ),
    "WeChat with tabs": ("messages", "is_sender\tmsg\n0\t你好\n1\t你好呀\n", [["你好", "你好呀"]], {}),
    "utterances": (
        "messages",
        "conv_id,speaker,utterance\na,1,hi\na,2,hello\nb,1,bye\nb,2,see you\n",
        [["hi", "hello"], ["bye", "see you"]],
        {},
    ),
    "names": ("messages", "时间,昵称,内容\n2020/1/1 8:00,甲,吃了吗\n2020/1/1 8:01,乙,吃了\n", [["吃了吗", "吃了"]], {}),
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
        {},
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


@pytest.mark.parametrize(("format_name", "content", "expected", "counts"), EXPORTS.values(), ids=EXPORTS.keys())
def test_exports_are_conversations(
    tmp_path: Path, format_name: str, content: str, expected: list[list[str]], counts: dict[str, int]
) -> None:
    found, report = conversations_of(written(tmp_path, "a.txt", content))
    assert found == expected
    assert report.formats == [format_name]
    assert dropped(report) == counts


@pytest.mark.parametrize(
    ("export", "me", "expected"),
    [
        ("Android", "anna", [["Yes At ten or later", "Look: here it is"], ["Good morning", "Morning!"]]),
        ("QQ", "12345678", [["好看，在哪里", "公园"]]),
        ("QQ", "小红", [["你们看", "好看，在哪里"]]),
        ("Telegram, account", "Ben", [["look at example.org please", "nice"]]),
        ("Telegram, account", "user65000", [["nice", "thanks"]]),
        ("WeChat", "me", [["在吗", "在，怎么了"], ["明天来吗, 老地方", "来"], ["晚安", "晚安！"]]),
        ("WeChat", "阿明", [["在吗", "在，怎么了"], ["明天来吗, 老地方", "来"], ["晚安", "晚安！"]]),
    ],
)
def test_me_chooses_whose_replies_are_learned(tmp_path: Path, export: str, me: str, expected: list[list[str]]) -> None:
    found, _ = conversations_of(written(tmp_path, "a.txt", EXPORTS[export][1]), me)
    assert sorted(found) == sorted(expected)


def test_turns_of_a_conversation_with_me_alternate(tmp_path: Path) -> None:
    lines = [
        f"[2020/12/31 21:15:0{second}] {name}: {second}" for second, name in enumerate(["A", "B", "A", "B", "C", "B"])
    ]
    path = written(tmp_path, "a.txt", "\n".join(lines))
    assert conversations_of(path)[0] == [["0", "1", "2", "3", "4", "5"]]
    assert conversations_of(path, "B")[0] == [["0", "1", "2", "3", "4", "5"]]
    assert conversations_of(path, "A")[0] == [["1", "2"]]


def test_unknown_name_lists_the_names_found(tmp_path: Path) -> None:
    path = written(tmp_path, "chat.txt", ANDROID)
    with pytest.raises(UserError, match=r"chat.txt: nobody is called Eva; give --me one of: Anna, Ben Miller"):
        conversations_of(path, "Eva")


def test_damaged_line_ends_its_conversation(tmp_path: Path) -> None:
    content = BRACKETS.replace("Hi", "Hi \ufffd?") + BRACKETS.replace("\r\n[", "\r\nmore\ufffd\r\n[") + BRACKETS
    found, report = conversations_of(written(tmp_path, "a.txt", content))
    assert found == [["Hello", "Hi", "Hello"]]
    assert dropped(report)["lines not UTF-8"] == 2


def test_telegram_export_is_streamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_files, "MAX_ITEM", 200_000)
    messages = [message("AB"[number % 2], f"text {number}", number) for number in range(10_000)]
    contacts = [{"first_name": "x" * 100}] * 5_000
    account = {**ACCOUNT, "contacts": {"list": contacts}, "chats": {"list": [{"name": "c", "messages": messages}]}}
    path = written(tmp_path, "result.json", as_json(account))
    assert path.stat().st_size > 10 * 200_000
    assert [len(turns) for turns in conversations_of(path)[0]] == [10_000]


def test_chats_of_a_table_are_held_in_bounded_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "MAX_OPEN", 10)
    rows = [f"{conversation},{turn % 2},{conversation} {turn}" for conversation in range(50) for turn in range(4)]
    found, _ = conversations_of(written(tmp_path, "a.csv", "\n".join(["dialog_id,speaker,text", *rows])))
    assert found == [[f"{conversation} {turn}" for turn in range(4)] for conversation in range(50)]


def test_lines_with_a_date_below_lines_of_dates_have_their_own_time(tmp_path: Path) -> None:
    chat = (
        "2023년 5월 2일 화요일\n2023. 5. 2. 오후 8:10, 지수 : 저녁 먹었어?\n2023. 5. 2. 오후 8:11, 나 : 아니\n"
        "2023. 5. 2. 오후 11:50, 지수 : 자니?\n2023. 5. 2. 오후 11:51, 나 : 응\n"
    )
    found, _ = conversations_of(written(tmp_path, "a.txt", chat))
    assert found == [["저녁 먹었어?", "아니"], ["자니?", "응"]]


def test_notices_of_whatsapp_in_languages_from_right_to_left_are_no_replies(tmp_path: Path) -> None:
    chat = (
        "[31.12.20, 21:15:03] נועה: שלום\n[31.12.20, 21:15:40] דן: \u200fהתמונה הושמטה\n[31.12.20, 21:16:40] דן: היי\n"
    )
    found, _ = conversations_of(written(tmp_path, "a.txt", chat))
    assert found == [["שלום", "היי"]]
