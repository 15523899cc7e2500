"""The command, and what it refuses: one line and exit code 2. An export is complete or absent."""

import json
import shutil
import sys
from pathlib import Path

import pytest

import chatbot
from chatbot.commands import chat
from chatbot.config.decoding import DecodingSettings
from chatbot.config.export import EXPORT, ExportSettings
from chatbot.errors import UserError, exit_code_of
from chatbot.export.__main__ import main
from chatbot.export.manifest import MANIFEST
from chatbot.export.runtime import ExportedResponder, load_export
from chatbot.export.write import export
from tests.export.test_replies import run_python
from tests.export.untrained import write_attempt

BLOCKED = "import sys; sys.modules.update(dict.fromkeys(['tensorflow', 'keras', 'numpy']))"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an attempt in checkpoints/ and an export of it."""
    folder = tmp_path_factory.mktemp("command")
    directory = write_attempt(folder / "checkpoints" / "tiny", attention="none", validated=False)
    export(ExportSettings("tiny", "onnx"), directory, folder / "exports" / "tiny-onnx")
    return folder


def refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The line of a command that is refused. words: the command and its flags."""
    monkeypatch.setattr(sys, "argv", list(words))
    try:
        code = chat() if words[0] == "chat.py" else exit_code_of(main)
    except SystemExit as end:
        code = int(end.code or 0)
    printed = capsys.readouterr()
    assert code == 2
    assert printed.out == ""
    assert len(printed.err.splitlines()) == 1
    return printed.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("export tiny --format onnx", "exports/tiny-onnx: exists already"),
        ("export tiny --format onnx --output pairs.tsv", "--output pairs.tsv: exists already"),
        ("export other --format onnx", "ATTEMPT other: no such attempt"),
        ("export tiny --format pickle", "choose one of savedmodel, onnx"),
        ("export tiny", "the following arguments are required: --format"),
        ("export --format onnx", "the following arguments are required: ATTEMPT"),
        (
            "export tiny --format onnx --beam-size 3",
            "--beam-size 3: an export for onnx takes these flags when it is used",
        ),
        ("export tiny --format savedmodel --stop x", "unrecognized arguments: --stop (see "),
        ("export tiny --format onnx --output new --data none.tsv", "none.tsv"),
        ("export tiny --format savedmodel --output new --top-p 1 --rerank 1", "--rerank: there is one reply"),
        (
            "export tiny --format savedmodel --output new --candidates 2 --top-k 1000",
            "--top-k 1000: the vocabulary has",
        ),
        ("chat.py --export nothing", "nothing: no such folder"),
        ("chat.py --export checkpoints/tiny", "not an export, export.json is not in it"),
        ("chat.py --export pairs.tsv", "not an export"),
        ("chat.py --export exports/tiny-onnx --attempt tiny", "--attempt tiny and --export exports/tiny-onnx"),
        ("chat.py --export exports/tiny-onnx --history 1", "reads one question at a time; leave --history out"),
        (
            "chat.py --export exports/tiny-onnx --coverage-penalty 1 --beam-size 2",
            "--coverage-penalty: this attempt has",
        ),
    ],
)
def test_unusable_input_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: str, message: str
) -> None:
    monkeypatch.chdir(folder)
    Path("pairs.tsv").write_text("a\tb\n")
    assert message in refused(monkeypatch, capsys, *words.split())
    assert not list(folder.rglob("*.part"))
    assert not Path("new").exists()


@pytest.mark.parametrize(
    ("package", "words", "command"),
    [
        ("tf2onnx", "export tiny --format onnx --output new", "pip install tf2onnx onnx onnxruntime"),
        ("onnxruntime", "chat.py --export exports/tiny-onnx", "pip install onnxruntime"),
    ],
)
def test_missing_package_is_named(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    package: str,
    words: str,
    command: str,
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setitem(sys.modules, package, None)
    assert f"run `{command}`" in refused(monkeypatch, capsys, *words.split())


@pytest.mark.parametrize("name", ["weights.bin", "step.onnx", "vocabulary.txt", "config.json", MANIFEST])
@pytest.mark.parametrize("damage", ["missing", "shorter", "changed"])
def test_damaged_export_is_refused(folder: Path, tmp_path: Path, name: str, damage: str) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(folder / "exports" / "tiny-onnx", copy)
    content = (copy / name).read_bytes()
    middle = len(content) // 2
    (copy / name).unlink()
    if damage == "shorter":
        (copy / name).write_bytes(content[:middle])
    elif damage == "changed":
        (copy / name).write_bytes(content[:middle] + b"\xff" + content[middle + 1 :])
    with pytest.raises(UserError, match=r"damaged|not an export"):
        load_export(copy)


@pytest.mark.parametrize(
    "changes",
    [
        {"chatbot_export": 2},
        {"format": "pickle"},
        {"step": "1"},
        {"files": [1]},
        {"files": {"a": 1}},
        {"more": 1},
        {"attempt": "\x1b[2J"},
    ],
)
def test_manifest_of_another_version_is_refused(folder: Path, tmp_path: Path, changes: dict[str, object]) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(folder / "exports" / "tiny-onnx", copy)
    values = json.loads((copy / MANIFEST).read_text())
    (copy / MANIFEST).write_text(json.dumps({**values, **changes}))
    with pytest.raises(UserError, match=r"damaged|of version"):
        load_export(copy)


def test_graph_that_is_no_graph_is_refused(folder: Path, tmp_path: Path) -> None:
    """Also when the checksums were made for it."""
    copy = tmp_path / "copy"
    shutil.copytree(folder / "exports" / "tiny-onnx", copy)
    values = json.loads((copy / MANIFEST).read_text())
    (copy / "step.onnx").write_bytes(b"")
    values["files"]["step.onnx"] = [0, 0]
    (copy / MANIFEST).write_text(json.dumps(values))
    with pytest.raises(UserError, match="cannot be read"):
        load_export(copy)


def test_half_written_export_is_removed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No other folder is touched."""

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("chatbot.export.write.write_manifest", full)
    output = folder / "full"
    (folder / "full.part").mkdir()
    with pytest.raises(OSError, match="No space"):
        export(ExportSettings("tiny", "onnx"), folder / "checkpoints" / "tiny", output)
    assert not output.exists()
    assert list(folder.rglob("*.part")) == [folder / "full.part"]
    (folder / "full.part").rmdir()


def test_default_search_is_that_of_the_attempt(folder: Path) -> None:
    found = load_export(folder / "exports" / "tiny-onnx")
    assert ExportedResponder(found, DecodingSettings()).decoding.beam_size == 5  # no validation chose the checkpoint
    assert ExportedResponder(found, DecodingSettings(top_p=0.5)).decoding.top_p == 0.5


def test_python_api_loads_an_export(folder: Path) -> None:
    bots = [chatbot.load(folder / place, beam_size=2) for place in ("exports/tiny-onnx", "checkpoints/tiny")]
    assert bots[0].reply("你好") == bots[1].reply("你好")
    assert bots[0].step == bots[1].step


def test_export_has_no_path_of_the_training_data(folder: Path) -> None:
    values = json.loads((folder / "exports" / "tiny-onnx" / "config.json").read_text())
    assert not {"data", "validation", "word_vectors"} & values.keys()


def test_help_and_refusals_need_no_tensorflow() -> None:
    program = f"{BLOCKED}; sys.argv = ['export', '--help']; from chatbot.export.__main__ import main; main()"
    assert "--weights" in run_python(program, stdin="")


def test_folder_is_named_after_the_attempt() -> None:
    settings = EXPORT.parse(["weibo", "--format", "onnx", "--weights", "int8"])
    assert settings.folder_of("weibo") == Path("exports", "weibo-onnx-int8")
    assert EXPORT.parse(["weibo", "--format", "onnx"]).folder_of("weibo") == Path("exports", "weibo-onnx")
