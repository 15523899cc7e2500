"""The documentation: commands parse, links have targets, and both languages have the same structure."""

import contextlib
import functools
import io
import os
import re
import runpy
import shlex
import shutil
import unicodedata
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.__main__ import NAMES, benchmark_of
from benchmarks.benchmark import Benchmark
from chatbot.attempts.settings import FIXED, PAIR_SETTINGS, changed_settings, train_settings
from chatbot.chat.server import connection, gate, state
from chatbot.commands import COMMANDS, script_of
from chatbot.config.corpus import FORMATS
from chatbot.config.model import ModelSettings
from chatbot.config.run import PRESET_MAX_PAIRS, PRESETS, RunSettings
from chatbot.config.training import Settings
from chatbot.corpus import cache, selection
from chatbot.evaluation import held_out
from chatbot.training import data

ROOT = Path(__file__).parents[1]
OF_DATA = ROOT / "data" / "README.md"
DOCUMENTS = [
    OF_DATA,
    *(
        path
        for glob in ("*.md", "docs/*.md", "deploy/kubernetes/*.md", "examples/*/*.md")
        for path in sorted(ROOT.glob(glob))
    ),
]
IN_ENGLISH = ("comparison-sources", "decisions", "experiments", "flags")  # alone
GUIDES = [path for path in DOCUMENTS if path.parent.name in ("docs", "kubernetes") or path.stem.startswith("README")]

RUNNING = {name for name, row in COMMANDS.items() if row.function}
PARSERS: dict[str, Callable[[Sequence[str]], Any]] = {
    **{f"python -m benchmarks {name}": benchmark_of(name) for name in NAMES},
    **{f"duida {name}": COMMANDS[name].parse for name in RUNNING},
    **{f"python -m chatbot {name}": COMMANDS[name].parse for name in RUNNING},
}
for name in RUNNING - {"ask", "serve"}:  # `chat` parses `python chat.py`
    PARSERS[f"python {script_of(name)}"] = COMMANDS[name].parse
OURS = re.compile(
    r"(\w+=\S* )*(python (train|chat)\.py|python -m (chatbot|benchmarks)|duida|make|(python )?examples/\S+\.(sh|py))\b"
)
FLAG = re.compile(r"--[a-z][a-z\d-]*[a-z\d]")
FOREIGN = {"--file", "--target", "--shm-size", "--ipc", "--no-deps"}  # Docker's and pip's


def each(documents: list[Path]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("path", documents, ids=[str(path.relative_to(ROOT)) for path in documents])


def code_blocks(path: Path) -> list[str]:
    """The lines of fenced and indented code blocks; a line that ends in a backslash is joined to the next."""
    lines, fenced = [], False
    for line in path.read_text(encoding="utf-8").replace("\\\n", " ").splitlines():
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif fenced or line.startswith("    "):
            lines.append(line.strip())
    return lines


def prose(path: Path) -> str:
    """The text without code blocks."""
    text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return "\n".join(line for line in text.splitlines() if not line.startswith("    "))


def code_spans(path: Path) -> list[str]:
    return [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", prose(path))]


def commands(path: Path) -> list[str]:
    """Every command of this project in a code block or a code span."""
    return [line for line in code_blocks(path) + code_spans(path) if OURS.match(line)]


def arguments_of(command: str) -> list[str]:
    """The words of a command, without variables before it, redirections, pipes and the comment after it."""
    words = re.split(r"\s(?:[<>|]|&&)\s", command)[0]
    return shlex.split(re.sub(r"^(\w+=\S* )+", "", words), comments=True)


@functools.cache
def help_of(parser: Callable[[Sequence[str]], Any]) -> str:
    return output_of(parser, ["--help"])


def output_of(parser: Callable[[Sequence[str]], Any], arguments: Sequence[str]) -> str:
    """The output of the parser. Raises AssertionError if it exits with an error."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        try:
            parser(arguments)
        except SystemExit as end:
            if end.code:
                raise AssertionError(printed.getvalue()) from None
    return printed.getvalue()


def check(command: str) -> None:
    """Raises AssertionError or UserError for a command that would not run."""
    words = arguments_of(command)
    if words[0] == "make":
        for target in (word for word in words[1:] if "=" not in word):
            assert target in make_targets(), f"make has no target {target}"
        return
    if (script := words[words[0] == "python"]).startswith("examples/"):
        assert (ROOT / script).is_file(), f"{script} does not exist"
        assert words[0] == "python" or os.access(ROOT / script, os.X_OK), f"{script} cannot be executed"
        return
    if any(name.startswith(" ".join(words).removesuffix(" NAME")) for name in PARSERS):
        return  # the name of a command, as in `python -m benchmarks NAME`
    name = max((name for name in PARSERS if words[: len(name.split())] == name.split()), key=len, default="")
    assert name, "unknown command"
    own = words[: words.index("--")] if "--" in words else words  # what follows -- is another command's
    parser, arguments = PARSERS[name], own[len(name.split()) :]
    for word in arguments:
        if word.startswith("--"):
            assert word.split("=")[0] in help_of(parser).split(), f"{name} has no flag {word}"
    output_of(parser, [*arguments, "--help"] if isinstance(parser, Benchmark) else arguments)  # they start work


@functools.cache
def make_targets() -> set[str]:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    return set(re.findall(r"^([a-z][\w-]*):", makefile, re.MULTILINE))


@each(DOCUMENTS)
def test_every_command_parses_and_trains_another_attempt_than_make_train(path: Path, work_dir: Path) -> None:
    """With other pairs or fixed settings, the attempt `default` that `make train` has made would be refused."""
    Path("checkpoints/weibo").mkdir(parents=True)
    Path("checkpoints/weibo/config.json").write_text("{}")
    shutil.copytree(ROOT / "tests/pretrained/models/t5", "bart-base-chinese")
    Path("bart-base-chinese/tokenizer.json").touch()
    Path("settings.yaml").write_text("attempt: mine\n")
    Path("examples").symlink_to(ROOT / "examples")
    for command in commands(path):
        try:
            check(command)
        except Exception as error:
            pytest.fail(f"{command}\n{error}")
        words = arguments_of(command.replace("duida train", "python train.py"))
        if words[:2] == ["python", "train.py"] and not {"-h", "--help", "--version", "--selftest"} & {*words}:
            settings = train_settings(words[2:])
            changed = changed_settings(Settings(), settings, [*FIXED, *PAIR_SETTINGS])
            assert settings.run.attempt != RunSettings.attempt or not changed, f"{command}: add --attempt"
    for line in code_blocks(path) + code_spans(path):  # also within a loop
        assert not re.search(r"(train\.py|duida train) (?!.*--attempt).*--data \S", line), f"{line}: add --attempt"


@each([path for path in GUIDES if not path.name.startswith("comparison")])
def test_every_flag_exists(path: Path) -> None:
    known = {word for parser in PARSERS.values() for word in help_of(parser).replace(",", " ").split()} | FOREIGN
    flags = {flag for span in code_spans(path) for flag in FLAG.findall(span)}
    assert flags <= known, flags - known


@each(DOCUMENTS)
def test_every_link_target_and_code_path_exists(path: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(path)):
        if not target.startswith(("http:", "https:")):
            name, _, anchor = target.partition("#")
            file = path.parent / name if name else path
            assert file.exists(), target
            folder = file.resolve().relative_to(ROOT).parts[0]
            assert folder not in ("chatbot", "tests"), f"{target}: code is not on the site, only on GitHub"
            assert not anchor or anchor in anchors(file), target
    paths = [span for span in code_spans(path) if re.fullmatch(r"(chatbot|tests|benchmarks)/[\w./]*", span)]
    assert [name for name in paths if not (ROOT / name).exists()] == []


def anchors(path: Path) -> list[str]:
    """The anchors that GitHub gives to the headings."""
    titles = re.findall(r"^#+ (.*)$", prose(path), re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles]


@each([path for path in GUIDES if path.parent.name != "data" and path.stem not in IN_ENGLISH])
def test_both_languages_have_the_same_structure(path: Path) -> None:
    english = path.with_name(path.name.replace(".zh.md", ".md"))
    assert structure(path) == structure(english) == structure(english.with_suffix(".zh.md"))


def structure(path: Path) -> list[list[Any]]:
    """The levels of the headings, the number of cells of each table row, and the code without comments."""
    lines = prose(path).splitlines()
    rows = [len(re.findall(r"(?<!\\)\|", line)) for line in lines if line.startswith("|")]
    levels = [len(heading[1]) for line in lines if (heading := re.match(r"(#+) ", line))]
    return [levels, rows, [re.sub(r"\s+# .*", "", line) for line in code_blocks(path)]]


@pytest.mark.parametrize(
    ("page", "sentence", "values"),
    [
        ("data", "{:.0%} of a corpus of", [selection.HELD_OUT_SHARE]),
        ("data", "a corpus of {:,} pairs or more is held out", [selection.MIN_PAIRS_TO_SPLIT]),
        ("data", "held out, up to {:,} pairs", [selection.MAX_HELD_OUT]),
        ("data", "unused for {} days", [cache.MAX_UNUSED_SECONDS // cache.DAY]),
        ("data", "above {} GB", [cache.MAX_BYTES // 10**9]),
        ("serving", "the last {:,} replies", [state.MAX_RECENT]),
        ("serving", "within {:.0f} minutes", [state.REPEAT_SECONDS / 60]),
        ("serving", "body larger than {} MiB", [gate.MAX_BODY_BYTES >> 20]),
        ("serving", "headers larger than {} KiB", [connection.MAX_HEAD_BYTES >> 10]),
        ("evaluation", "If {:.0%} or more of the pairs", [held_out.MIN_KNOWN]),
        ("training", "fewer than {} validation pairs", [data.MIN_DECISIVE_PAIRS]),
        ("training", "dropout keeps, by default {}", [ModelSettings.keep_prob]),
    ],
)
def test_figures_are_those_of_the_code(page: str, sentence: str, values: list[float]) -> None:
    """The Chinese page has the same figures."""
    text = " ".join(prose(ROOT / "docs" / f"{page}.md").split())
    assert sentence.format(*values) in text


@each([path for path in GUIDES if path.name.endswith(".zh.md") and path.parent != ROOT])
def test_both_languages_state_the_same_figures(path: Path) -> None:
    """The front pages show runs on different corpora."""
    assert figures(path) == figures(path.with_name(path.name.replace(".zh.md", ".md")))


def figures(path: Path) -> set[float]:
    """The numbers in the text that have at least three digits or a fraction."""
    text = re.sub(r"\]\([^)]*\)", "]", " ".join(prose(path).split()).replace(",", ""))
    scales = {"million": 1e6, "万": 1e4, "亿": 1e8}
    found = re.findall(r"(?<![\w.])(\d+(?:\.\d+)?)(?![\d.]*[A-Za-z]) ?(million|万|亿)?", text)
    numbers = {(digits, round(float(digits) * scales.get(scale, 1), 6)) for digits, scale in found}
    return {number for digits, number in numbers if number >= 100 or "." in digits}


def rows(path: Path, first_cell: str) -> list[list[str]]:
    """The cells of the table whose heading begins with a cell, without its two first lines."""
    _, _, table = path.read_text(encoding="utf-8").partition(f"\n| {first_cell} |")
    lines = table.partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def test_presets_match_the_code() -> None:
    expected = []
    for name, values in PRESETS.items():
        flags = [f"--{key.replace('_', '-')}" + ("" if value is True else f" {value}") for key, value in values.items()]
        bound = f"fewer than {PRESET_MAX_PAIRS[name]:,}" if name in PRESET_MAX_PAIRS else "300,000 or more"
        expected.append([f"`{name}`", bound, f"`{' '.join(flags)}`"])
    assert rows(ROOT / "docs" / "training.md", "preset") == expected


def test_formats_match_the_code() -> None:
    path = ROOT / "docs" / "data.md"
    names = {name for cells in rows(path, "format") for name in cells[0].split(", ") if name}
    without_flag = re.search(r"a name in the table above except ([\w, ]+?)\.", " ".join(prose(path).split()))
    assert without_flag
    assert names - set(re.split(r", | and ", without_flag[1])) == set(FORMATS)


@each([*GUIDES, ROOT / "benchmarks" / "README.md"])
def test_lines_have_at_most_120_columns_and_front_pages_are_short(path: Path) -> None:
    longest = {ROOT: 90, ROOT / "benchmarks": 110}.get(path.parent)
    if longest is not None:
        assert len(path.read_text(encoding="utf-8").splitlines()) <= longest
    for line in path.read_text(encoding="utf-8").splitlines():
        columns = sum(2 if unicodedata.east_asian_width(character) in "WF" else 1 for character in line)
        assert columns <= 120 or line.startswith("|"), line


@each([path for path in GUIDES if path.name.endswith(".zh.md")])
def test_chinese_lines_do_not_end_within_a_sentence(path: Path) -> None:
    """A browser shows the end of a line as a space, which Chinese has after punctuation and Latin words at most."""
    assert not re.search(r".*[\u4e00-\u9fff]\n *[\u4e00-\u9fff].*", prose(path))


@each(DOCUMENTS)
def test_packages_are_installed_from_this_folder(path: Path) -> None:
    assert not re.search(r"""pip install "?'?duida""", path.read_text(encoding="utf-8"))


@each([ROOT / "docs" / "troubleshooting.md", ROOT / "docs" / "troubleshooting.zh.md"])
def test_quoted_messages_are_in_the_code(path: Path) -> None:
    code = "".join(file.read_text(encoding="utf-8") for file in (ROOT / "chatbot").rglob("*.py"))
    messages = re.findall(r"^\| `([^`]+)` \|", path.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(messages) > 3
    for message in messages:
        for part in re.split(r"error: worker|\([^)]*\)|\d+", message):
            assert part in code, message


def test_reference_of_flags_is_current() -> None:
    reference = runpy.run_path(str(ROOT / "docs" / "flags.py"))["reference"]
    assert (ROOT / "docs" / "flags.md").read_text(encoding="utf-8") == reference(), "run python docs/flags.py"
