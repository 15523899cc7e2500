"""Wild files that are no text, by their names in the folder `wild`, which has what is expected of each."""

import json
import pickle
import sqlite3
import struct
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import openpyxl
import pyarrow
import zstandard
from pyarrow import feather, ipc, parquet

from tests.corpus.reading.sample_files import zipped

ROWS = [("你好", "你好呀"), ("再见", "慢走")]
TABLE = pyarrow.table({"question": [row[0] for row in ROWS], "answer": [row[1] for row in ROWS]})
LINES = "".join(json.dumps({"q": q, "a": a}, ensure_ascii=False) + "\n" for q, a in ROWS).encode()
OASST = pyarrow.table(
    {
        "message_id": ["a", "b", "c", "d"],
        "parent_id": [None, "a", "b", "c"],
        "text": ["你好", "你好呀", "再见", "慢走"],
        "role": ["prompter", "assistant"] * 2,
        "lang": ["zh"] * 4,
        "rank": pyarrow.array([None, 0, None, 0], pyarrow.int32()),
    }
)
SLACK = {
    "users.json": '[{"id": "U1", "name": "liwei", "real_name": "李伟"}]',
    "channels.json": '[{"id": "C1", "name": "general", "purpose": {"value": "闲聊"}}]',
    "integration_logs.json": "[]",
    "general/2024-03-04.json": json.dumps(
        [
            {"type": "message", "text": "周五吃什么？", "user": "U1", "ts": "1709550000.0"},
            {"type": "message", "text": "火锅吧。", "user": "U2", "ts": "1709550060.0"},
            {"type": "message", "text": "几点？", "user": "U1", "ts": "1709550070.0"},
            {"type": "message", "text": "六点。", "user": "U2", "ts": "1709550080.0"},
            {"type": "message", "subtype": "channel_join", "text": "<@U2> joined", "user": "U2", "ts": "1709550090.0"},
        ]
    ),
}
DEEPSEEK_NODES = {
    key: {"parent": parent, "children": children, "message": {"fragments": fragments} if fragments else None}
    for key, parent, children, fragments in (
        ("root", None, ["1"], []),
        ("1", "root", ["2"], [{"type": "REQUEST", "content": "土豆发芽了还能吃吗"}]),
        (
            "2",
            "1",
            [],
            [{"type": "THINK", "content": "龙葵素。"}, {"type": "RESPONSE", "content": "不能，芽和周围都有毒。"}],
        ),
    )
}
DEEPSEEK = {
    "account.json": '{"user_id": "u", "email": "a@mail.example"}',
    "conversations.json": json.dumps([{"id": "a", "title": "土豆", "mapping": DEEPSEEK_NODES}]),
}
CHAT = [["time", "sender", "content"], ["2024-01-01 10:00", "甲", "你好"], ["2024-01-01 10:01", "乙", "你好呀"]]

WEFLOW: list[list[object]] = [
    ["会话信息"],
    ["微信ID", "wxid_he0000000001", None, "昵称", "小禾"],
    ["导出工具", "WeFlow", "导出版本", "0.0.2", "平台", "wechat", "导出时间", "2024-05-03 09:00:00"],
    ["序号", "时间", "发送者昵称", "发送者微信ID", "发送者备注", "发送者身份", "消息类型", "内容"],
    [1, "2024-05-01 20:00:05", "小禾", "wxid_he0000000001", None, "小禾", "文本消息", "周六要不要去爬山"],
    [2, "2024-05-01 20:00:41", "阿木", "wxid_mu0000000002", None, "我", "文本消息", "好呀，几点出发"],
    [3, "2024-05-01 20:00:55", "阿木", "wxid_mu0000000002", None, "我", "语音消息", "[语音消息]"],
    [4, "2024-05-01 20:01:10", "小禾", "wxid_he0000000001", None, "小禾", "文本消息", "七点在北门等你"],
    [5, "2024-05-01 20:03:10", "小禾", "wxid_he0000000001", None, "小禾", "通话消息", "[语音通话] 00:35"],
    [6, "2024-05-01 20:04:00", "阿木", "wxid_mu0000000002", None, "我", "文本消息", "行"],
]
QQ_SHEET: list[list[object]] = [
    ["序号", "时间", "发送者", "发送者QQ号", "消息类型", "消息内容", "是否撤回", "资源数量"],
    [1, "2024-03-02T11:00:00.000Z", "阿梨", "32463", "文本", "谁有上次的笔记", "否", 0],
    [2, "2024-03-02T11:00:30.000Z", "老周", "35769", "文本", "我有", "否", 0],
    [3, "2024-03-02T11:01:10.000Z", "阿梨", "32463", "文本", "发错了", "是", 0],
    [4, "2024-03-02T11:02:00.000Z", "系统消息", None, "系统消息", "小满加入了群聊", "否", 0],
    [5, "2024-03-02T11:03:00.000Z", "阿梨", "32463", "回复", "[回复消息]太好了", "否", 0],
    [6, "2024-03-02T11:05:00.000Z", "老周", "35769", "音频", "[语音:6秒]", "否", 1],
    [7, "2024-03-02T11:06:00.000Z", "阿梨", "32463", "文本", "听不清", "否", 0],
]


def arrow(path: Path) -> None:
    """An Arrow file."""
    with pyarrow.OSFile(str(path), "wb") as file, ipc.new_file(file, TABLE.schema) as writer:
        writer.write_table(TABLE)


def saved_dataset(path: Path) -> None:
    """A folder as `datasets` saves it."""
    path.mkdir()
    (path / "dataset_info.json").write_text('{"citation": "", "features": {"question": {"_type": "Value"}}}')
    (path / "state.json").write_text('{"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}')
    data = str(path / "data-00000-of-00001.arrow")
    with pyarrow.OSFile(data, "wb") as file, ipc.new_stream(file, TABLE.schema) as writer:
        writer.write_table(TABLE)


def workbook(*sheets: Sequence[Sequence[object]], hidden: int = 0) -> Callable[[Path], None]:
    """A workbook with these sheets; the last `hidden` ones are hidden."""

    def write(path: Path) -> None:
        book = openpyxl.Workbook()
        book.remove(book.active)
        for number, rows in enumerate(sheets):
            sheet = book.create_sheet(f"Sheet{number + 1}")
            for row in rows:
                sheet.append(row)
            sheet.sheet_state = "hidden" if number >= len(sheets) - hidden else "visible"
        book.save(path)

    return write


def changed(member: str, change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    """A workbook in which a member has been changed."""

    def write(path: Path) -> None:
        workbook(ROWS)(path)
        with zipfile.ZipFile(path) as archive:
            members = {info.filename: archive.read(info) for info in archive.infolist()}
        path.write_bytes(zipped({**members, member: change(members[member])}))

    return write


def record(kind: int, data: bytes) -> bytes:
    """A record of an .xls file."""
    return struct.pack("<HH", kind, len(data)) + data


def unicode(text: str, length: str = "<H") -> bytes:
    """A text in an .xls file: its length, a flag for UTF-16, its characters."""
    return struct.pack(length, len(text)) + b"\1" + text.encode("utf-16-le")


def old_workbook(path: Path) -> None:
    """An .xls file of Excel 97: a sheet with a text or a number in each cell, and a hidden one."""
    header = {name: record(0x809, struct.pack("<HHHHII", 0x600, kind, 0, 0, 0, 0)) for name, kind in KINDS.items()}
    end = record(0x0A, b"")
    cells: list[list[str | float]] = [["问题", "答案"], ["你好", "你好呀"], ["再见", 42.0]]
    sheet = header["sheet"]
    for row, values in enumerate(cells):
        for column, value in enumerate(values):
            place = struct.pack("<HHH", row, column, 0)
            if isinstance(value, str):
                sheet += record(0x204, place + unicode(value))
            else:
                sheet += record(0x203, place + struct.pack("<d", value))
    names = [("甲", 0), ("乙", 1)]  # and whether they are hidden
    size = sum(len(record(0x85, bytes(6) + unicode(name, "<B"))) for name, _ in names)
    start = len(header["book"]) + size + len(end)
    book = header["book"]
    for number, (name, hidden) in enumerate(names):
        offset = start + number * len(sheet + end)
        book += record(0x85, struct.pack("<IBB", offset, hidden, 0) + unicode(name, "<B"))
    path.write_bytes(compound("Workbook", book + end + (sheet + end) * 2))


def compound(name: str, data: bytes) -> bytes:
    """A compound document of Microsoft with one stream: a header, its allocation table, a directory, the stream."""
    sectors = 8 + len(data) // 512  # a shorter stream would need a second table
    data = data.ljust(sectors * 512, b"\0")
    chain = [*range(3, sectors + 2), -2]
    table = struct.pack("<128i", -3, -2, *chain, *[-1] * (126 - len(chain)))

    def entry(title: str, kind: int, child: int, first: int, size: int) -> bytes:
        text = (title + "\0").encode("utf-16-le")
        fields = struct.pack("<HBBiii", len(text), kind, 1, -1, -1, child)
        return text.ljust(64, b"\0") + fields + bytes(36) + struct.pack("<iII", first, size, 0)

    directory = entry("Root Entry", 5, 1, -2, 0) + entry(name, 2, -1, 2, len(data))
    head = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(16)
    # The version and the sizes; then the sectors of the directory, the tables, where the directory is, the least size
    # of a stream with sectors of its own, and two tables that are not there.
    head += struct.pack("<HHHHH6x", 0x3E, 3, 0xFFFE, 9, 6) + struct.pack("<IIiIIiIiI", 0, 1, 1, 0, 4096, -2, 0, -2, 0)
    return head + struct.pack("<109i", 0, *[-1] * 108) + table + directory.ljust(512, b"\0") + data


def content(data: bytes) -> Callable[[Path], None]:
    """A file with this content."""

    def write(path: Path) -> None:
        path.write_bytes(data)

    return write


def database(path: Path) -> None:
    """A database with one table."""
    connection = sqlite3.connect(path)
    connection.execute("create table chat (question text, answer text)")
    connection.commit()
    connection.close()


KINDS = {"book": 5, "sheet": 0x10}  # of the parts of an .xls file
SHEET = "xl/worksheets/sheet1.xml"
ANSWERED: list[Any] = [["序号", "问题", "答案"], [1, "你好", "你好呀"], [2, "再见", "慢走"]]

# The function writes the file, or the folder, at the path.
BINARIES: dict[str, Callable[[Path], None]] = {
    "pairs.arrow": arrow,
    "pairs.feather": lambda path: feather.write_feather(TABLE, path),
    "saved_dataset": saved_dataset,
    "oasst.parquet": lambda path: parquet.write_table(OASST, path),
    "two_columns.xlsx": workbook([["问题", "答案"], *ROWS]),
    "sheets.xlsx": workbook([["说明"], ["本表由客服整理", None, 2024, "v1"]], ANSWERED, []),
    "cover.xlsx": workbook(
        [["联系人", "小周"], ["版本", "V2"]],
        [[], [None, "No.", "问题", "回答"], *([None, 1, *row] for row in ROWS), [], [None, None, "合计", 2]],
    ),
    "chat.xlsx": workbook([*CHAT, ["2024-01-01 10:02", "甲", "再见"]]),
    "weflow.xlsx": workbook(WEFLOW),
    "qq_chat_exporter.xlsx": workbook(QQ_SHEET, [["统计项目", "数值"], ["消息总数", 7]]),
    "hidden.xlsx": workbook([["问题", "答案"], ROWS[0]], [["问题", "答案"], ROWS[1]], hidden=1),
    # The sheet claims all columns and rows, and has a cell far below.
    "old.xls": old_workbook,
    "wide.xlsx": changed(SHEET, lambda data: data.replace(b'ref="A1:B2"', b'ref="A1:XFD1048576"')),
    "damaged.xlsx": changed(SHEET, lambda data: data[: len(data) // 2]),
    "word.docx": content(zipped({"[Content_Types].xml": "<x/>", "word/document.xml": "<x/>"})),
    "letter.doc": content(b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(2000)),
    "pairs.jsonl.zst": content(zstandard.compress(LINES)),
    "cut.jsonl.zst": content(zstandard.compress(LINES)[:-5]),
    "pairs.7z": content(b"7z\xbc\xaf\x27\x1c\0\4" + bytes(64)),
    "pairs.rar": content(b"Rar!\x1a\x07\x01\0" + bytes(64)),
    "paper.pdf": content(b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n1 0 obj\n"),
    "chat.db": database,
    "pairs.pkl": content(pickle.dumps(ROWS)),
    "slack.zip": content(zipped(SLACK)),
    "deepseek.zip": content(zipped(DEEPSEEK)),
    "photo.jpg": content(b"\xff\xd8\xff\xe0\0\x10JFIF\0" + bytes(64)),
    "voice.mp3": content(b"ID3\x03\0\0\0\0\0\x21" + bytes(64)),
    "pairs.lz4": content(b"\x04\x22\x4d\x18" + bytes(64)),
}
