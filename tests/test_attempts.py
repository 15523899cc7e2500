"""An attempt as its user sees it: it goes on by its name alone, its folder may be renamed, and a path names it, too."""

from pathlib import Path

import pytest

from tests.commands import ENVIRONMENT, run

STRICT_C_LOCALE = {"LC_ALL": "POSIX", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
SIZES = ("--rnn-size", "8", "--embedding-size", "8")


@pytest.fixture
def _c_locale(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PYTHONIOENCODING", "LANG", "LC_CTYPE"):
        monkeypatch.delitem(ENVIRONMENT, name, raising=False)
    for name, value in STRICT_C_LOCALE.items():
        monkeypatch.setitem(ENVIRONMENT, name, value)


@pytest.mark.slow
@pytest.mark.usefixtures("_c_locale")
def test_attempt_goes_on_by_its_name_after_it_was_renamed(work_dir: Path) -> None:
    """In a strict C locale, in which Chinese is readable."""
    Path("pairs.tsv").write_text("你好\t你好呀\n吃了吗\t吃了\n", encoding="utf-8")
    begun = run("train.py", "--data", "pairs.tsv", *SIZES, "--steps", "2", "--attempt", "talk2")
    assert (begun.returncode, "你好 -> 你好 呀" in begun.stdout.decode()) == (0, True), begun.stderr.decode()

    Path("checkpoints/talk2").rename("checkpoints/talk3")
    resumed = run("train.py", "--config", "checkpoints/talk3/config.json", "--steps", "3")
    out = resumed.stdout.decode()
    assert resumed.returncode == 0, resumed.stderr.decode()
    assert "Resuming from step 2 of checkpoints/talk3." in out
    assert [path.name for path in Path("checkpoints").iterdir()] == ["talk3"]

    refused = run("train.py", "--attempt", "talk3", "--rnn-size", "16")
    assert refused.returncode == 2
    assert "Settings of checkpoints/talk3/config.json: --data pairs.tsv " in refused.stdout.decode()
    assert "--rnn-size 8 -> 16. `python train.py --attempt talk3` resumes it with its own" in refused.stderr.decode()

    talk = run("chat.py", "--attempt", f"{work_dir}/checkpoints/talk3", stdin="你好\n".encode())
    assert (talk.returncode, talk.stdout.decode().count("\n")) == (0, 1), talk.stderr.decode()


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        (STRICT_C_LOCALE, "你好😀".encode()),
        ({"PYTHONIOENCODING": "gbk"}, "你好".encode("gbk") + rb"\U0001f600"),
        ({**STRICT_C_LOCALE, "PYTHONIOENCODING": "ascii"}, rb"\u4f60\u597d\U0001f600"),
    ],
)
@pytest.mark.usefixtures("_c_locale")
def test_text_is_readable_or_escaped(
    work_dir: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], expected: bytes
) -> None:
    for name, value in variables.items():
        monkeypatch.setitem(ENVIRONMENT, name, value)
    Path("pairs.tsv").write_text("你好😀\t好\n", encoding="utf-8")
    completed = run("chatbot.corpus", "inspect", "pairs.tsv")
    assert (completed.returncode, completed.stderr) == (0, b"")
    assert expected in completed.stdout.replace(b" ", b"")
