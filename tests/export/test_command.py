"""The command, and what it refuses: one line and exit code 2. An export is complete or absent."""

import hashlib
import json
import shutil
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

import chatbot
from chatbot.chat.loading import load_exported
from chatbot.commands import main
from chatbot.config.attempts import DATA
from chatbot.config.decoding import DecodingSettings
from chatbot.config.export import EXPORT, ExportSettings
from chatbot.errors import UserError
from chatbot.export.manifest import MANIFEST, folder_of, read_manifest, write_zip
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
    (directory / DATA).write_text(json.dumps({"questions": ["晚安"]}))
    export(ExportSettings("tiny", "onnx"), directory, folder / "exports" / "tiny-onnx")
    return folder


@pytest.fixture
def copy(folder: Path, tmp_path: Path) -> Path:
    """A copy of the export."""
    return Path(shutil.copytree(folder / "exports" / "tiny-onnx", tmp_path / "copy"))


def change_manifest(export: Path, **changes: object) -> None:
    values = json.loads((export / MANIFEST).read_text())
    (export / MANIFEST).write_text(json.dumps({**values, **changes}))


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs a command, given by its words, and returns what it prints, or the one line by which it is refused."""

    def run(*words: str, is_refused: bool = False) -> str:
        monkeypatch.setattr(sys, "argv", list(words))
        try:
            code = main("chat" if words[0] == "chat.py" else "export")
        except SystemExit as end:
            code = int(end.code or 0)
        printed = capsys.readouterr()
        assert code == 2 * is_refused
        if is_refused:
            assert (printed.out, len(printed.err.splitlines())) == ("", 1)
        return printed.err if is_refused else printed.out

    return run


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("export tiny --format onnx", "exports/tiny-onnx: exists already"),
        ("export tiny --output pairs.tsv", "pairs.tsv: exists already; give another name, or --overwrite"),
        ("export tiny --output pairs.tsv --overwrite", "--overwrite: pairs.tsv is no export, so it is kept"),
        ("export tiny --output checkpoints --overwrite", "--overwrite: checkpoints is no export, so it is kept"),
        ("export tiny --zip pairs.tsv", "--zip pairs.tsv: give a name that ends in .zip"),
        (
            "export tiny --zip a.zip --format savedmodel",
            "ends in .zip, and --format onnx",
        ),
        ("export tiny --zip a.zip --output b", "--zip a.zip and --output b: give one of the two"),
        ("chat.py pairs.zip", "pairs.zip: not an export; give a file that `python -m chatbot.export --zip`"),
        ("chat.py a.zip --export b", "b and a.zip: give one export"),
        ("chat.py --json", "--json: for the reply to a question"),
        ("chat.py --serve 127.0.0.1:0 你好", "'你好': a server is asked by requests"),
        ("export other --format onnx", "ATTEMPT other: no such attempt"),
        ("export tiny --format pickle", "choose one of savedmodel, onnx"),
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
    folder: Path, monkeypatch: pytest.MonkeyPatch, command: Callable[..., str], words: str, message: str
) -> None:
    monkeypatch.chdir(folder)
    for name in ("pairs.tsv", "pairs.zip"):
        Path(name).write_text("a\tb\n")
    assert message in command(*words.split(), is_refused=True)
    assert not list(folder.rglob("*.part"))
    assert not Path("new").exists()


@pytest.mark.parametrize(
    ("package", "words", "remedy"),
    [
        ("tf2onnx", "export tiny --format onnx --output new", "pip install tf2onnx onnx onnxruntime"),
        ("onnxruntime", "chat.py --export exports/tiny-onnx", "pip install onnxruntime"),
    ],
)
def test_missing_package_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch, command: Callable[..., str], package: str, words: str, remedy: str
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setitem(sys.modules, package, None)
    assert f"run `{remedy}`" in command(*words.split(), is_refused=True)


@pytest.mark.parametrize("name", ["weights.bin", "step.onnx", "vocabulary.txt", "config.json", MANIFEST])
@pytest.mark.parametrize("damage", ["missing", "shorter", "changed"])
def test_damaged_export_is_refused(copy: Path, name: str, damage: str) -> None:
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
        {"questions": ["\x1b[2J"]},
        {"questions": [1]},
        {"questions": "晚安"},
    ],
)
def test_manifest_of_another_version_is_refused(copy: Path, changes: dict[str, object]) -> None:
    change_manifest(copy, **changes)
    with pytest.raises(UserError, match=r"damaged|of version"):
        load_export(copy)


def test_export_has_the_questions_that_its_attempt_offers(copy: Path) -> None:
    """One of an earlier version has none."""
    assert load_exported(copy).card.questions == ("晚安",)
    values = json.loads((copy / MANIFEST).read_text())
    del values["questions"]
    (copy / MANIFEST).write_text(json.dumps(values))
    assert load_exported(copy).card.questions == ()


def test_zip_that_does_not_fit_on_the_disk(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_zip(folder / "exports" / "tiny-onnx", tmp_path / "tiny.zip")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    with pytest.raises(UserError, match=r"GB unpacked, and .* has 0.0 GB free; free some, or set TMPDIR"):
        folder_of(tmp_path / "tiny.zip")


def test_graph_that_is_no_graph_is_refused(copy: Path) -> None:
    """Also when the checksums were made for it."""
    files = json.loads((copy / MANIFEST).read_text())["files"]
    (copy / "step.onnx").write_bytes(b"")
    change_manifest(copy, files={**files, "step.onnx": [0, 0]})
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


def test_export_has_no_path_of_the_training_data(folder: Path) -> None:
    values = json.loads((folder / "exports" / "tiny-onnx" / "config.json").read_text())
    assert not {"data", "validation", "word_vectors"} & values.keys()


def test_help_and_refusals_need_no_tensorflow() -> None:
    program = f"{BLOCKED}; sys.argv = ['export', '--help']; from chatbot.commands import main; main('export')"
    assert "--weights" in run_python(program, stdin="")


def test_folder_is_named_after_the_attempt() -> None:
    settings = EXPORT.parse(["weibo", "--format", "onnx", "--weights", "int8"])
    assert settings.path_of("weibo") == Path("exports", "weibo-onnx-int8")
    assert EXPORT.parse(["weibo", "--format", "onnx"]).path_of("weibo") == Path("exports", "weibo-onnx")


def test_zip_is_one_file_that_replies_like_its_attempt(
    folder: Path, work_dir: Path, command: Callable[..., str]
) -> None:
    shutil.copytree(folder / "checkpoints", "checkpoints")
    size, checksum, _ = command("export", "--attempt", "tiny", "--zip", "a.zip").splitlines()
    assert size == f"a.zip: onnx, weights in float32, {Path('a.zip').stat().st_size / 1e6:.1f} MB"
    assert checksum == f"SHA-256 {hashlib.sha256(Path('a.zip').read_bytes()).hexdigest()}"
    assert [path.name for path in work_dir.iterdir()] in (["a.zip", "checkpoints"], ["checkpoints", "a.zip"])
    bots = [chatbot.load(place, beam_size=2) for place in ("a.zip", "checkpoints/tiny")]
    assert (bots[0].reply("你好"), bots[0].step) == (bots[1].reply("你好"), bots[1].step)
    replies = [
        command("chat.py", *words, "--beam-size", "2")
        for words in (["a.zip", "你好"], ["你好", "--export", "a.zip"], ["你好", "--attempt", "tiny"])
    ]
    assert replies == [f"{bots[0].reply('你好')}\n"] * 3


def test_overwrite_replaces_an_export_alone(folder: Path, work_dir: Path, command: Callable[..., str]) -> None:
    shutil.copytree(folder / "checkpoints", "checkpoints")
    write_zip(Path(shutil.copytree(folder / "exports" / "tiny-onnx", "new")), Path("new.zip"))
    for flags in (["--output", "new"], ["--zip", "new.zip"]):
        command("export", "tiny", *flags, "--overwrite", "--weights", "int8")
        assert chatbot.load(flags[1]).reply("你好")
        assert read_manifest(folder_of(Path(flags[1]))).weights == "int8"
    assert sorted(path.name for path in work_dir.iterdir()) == ["checkpoints", "new", "new.zip"]


def test_question_as_json(folder: Path, command: Callable[..., str]) -> None:
    export_of = str(folder / "exports" / "tiny-onnx")
    bot = chatbot.load(export_of, beam_size=2, n_best=1)
    printed = command("chat.py", "你好", "吗", "--json", "--export", export_of, "--beam-size", "2")
    ((reply, score),) = bot.n_best("你好 吗")
    assert json.loads(printed) == {"reply": reply, "score": pytest.approx(score), "looked_up": None}


def test_unpacked_zip_is_removed_when_the_process_ends(folder: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for path in (folder / "exports" / "tiny-onnx").iterdir():
            archive.write(path, path.name)
    program = (
        "import sys, tempfile; from pathlib import Path; from chatbot.export.manifest import folder_of; "
        f"folder = folder_of(Path({str(tmp_path / 'a.zip')!r})); print(folder.name, len([*folder.iterdir()]), folder)"
    )
    name, files, place = run_python(program, stdin="").split()
    assert (name, int(files)) == ("a", len([*(folder / "exports" / "tiny-onnx").iterdir()]))
    assert not Path(place).parent.exists()


def test_damaged_zip_is_refused(folder: Path, tmp_path: Path) -> None:
    whole = Path(shutil.make_archive(str(tmp_path / "a"), "zip", folder / "exports" / "tiny-onnx"))
    content = bytearray(whole.read_bytes())
    content[len(content) // 3] ^= 0xFF
    (tmp_path / "b.zip").write_bytes(content)
    (tmp_path / "c.zip").write_bytes(whole.read_bytes()[:-100])
    assert load_exported(whole).card.name == "tiny"
    for name in ("b.zip", "c.zip"):
        with pytest.raises(UserError, match=r"cannot be read|not an export|damaged"):
            load_exported(tmp_path / name)
