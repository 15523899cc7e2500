"""Deletes a piece of the product at random, one at a time, and counts how many deletions the tests notice.

A piece is a statement, a condition, a keyword argument or an element of a list. Lines are drawn by a seed, so that a
package has as many as its share of the product. The changed files are those of copies of the tree, one for each
process, so that any tests can run, with TensorFlow and processes of their own. A deletion is noticed if a test fails in
the file that mirrors the changed one, beside it, or in a file that imports it.
"""

import argparse
import ast
import contextlib
import difflib
import functools
import importlib
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tqdm import tqdm

from tests.changed import files_for

ROOT = Path(__file__).parents[1]
FAST = "not slow and not gpu and not system"
LONGEST_TESTS = 400  # seconds; a deletion is noticed if it makes them endless, and they end without it
FAILURES = "FAILED tests/", "ERROR tests/"  # the beginnings of lines of pytest, not of logs
NONE_SELECTED = 5  # pytest's exit status where all tests of the files have marks


class Deletion(NamedTuple):
    """The `number`th deletion of a file, as `deletions` lists them, whose piece stands in this line."""

    path: Path
    line: int
    number: int
    kind: str


Delete = Callable[[], object]


def pieces(node: ast.AST) -> Iterator[tuple[ast.AST, str, Delete]]:
    """Yield each piece directly in a node, its kind, and what deletes it from the tree."""
    blocks = [getattr(node, field, None) for field in ("body", "orelse", "finalbody")]
    for block in (block for block in blocks if isinstance(block, list)):
        for i, statement in enumerate(block):
            if can_be_missed(statement, block[:i]):
                yield statement, "statement", partial(block.__setitem__, i, ast.Pass())
    match node:
        case ast.If(test=test) | ast.IfExp(test=test):
            yield test, "condition", partial(setattr, node, "test", ast.Constant(True))
            if isinstance(node, ast.IfExp) or node.orelse:
                yield test, "condition", partial(setattr, node, "test", ast.Constant(False))
        case ast.BoolOp(values=parts) | ast.comprehension(ifs=parts):
            for part in parts:
                yield part, "condition", partial(parts.remove, part)
        case ast.Call(keywords=keywords):
            for keyword in keywords:
                yield keyword.value, "keyword argument", partial(keywords.remove, keyword)
        case ast.List(elts=elements) | ast.Set(elts=elements) | ast.Tuple(elts=elements, ctx=ast.Load()):
            for element in elements if len(elements) > 1 else []:
                yield element, "element", partial(elements.remove, element)
        case ast.Dict(keys=keys, values=values):
            for i, value in enumerate(values):
                yield value, "element", partial(lambda i: (keys.pop(i), values.pop(i)), i)


def can_be_missed(statement: ast.stmt, before: list[ast.stmt]) -> bool:
    """Return whether a statement does something, and none after it must fail at once for want of a name."""
    match statement:
        case ast.Expr(value=value):
            return not isinstance(value, ast.Constant)  # a docstring
        case ast.Assign(targets=[target]) | ast.AnnAssign(target=target, value=ast.expr()):
            bound = {n.id for s in before for n in ast.walk(s) if isinstance(n, ast.Name)}
            return target.id in bound if isinstance(target, ast.Name) else not isinstance(target, ast.Tuple)
        case ast.If(test=test, orelse=orelse):
            return not orelse and "TYPE_CHECKING" not in (text := ast.unparse(test)) and "__name__" not in text
        case _:
            return isinstance(statement, ast.AugAssign | ast.Raise | ast.Delete | ast.Continue | ast.Break | ast.Return)


def walk(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and those in it, without types, decorators and assertions."""
    yield node
    for name, value in ast.iter_fields(node):
        if name not in ("annotation", "returns", "decorator_list"):
            for child in value if isinstance(value, list) else [value]:
                is_type = isinstance(node, ast.Subscript) and name == "slice"
                if isinstance(child, ast.AST) and not isinstance(child, ast.Assert) and not is_type:
                    yield from walk(child)


def deletions(tree: ast.Module) -> list[tuple[int, str, Delete]]:
    """Return the line and kind of each deletion, and what does it to the tree."""
    found = [piece for node in walk(tree) for piece in pieces(node)]
    return [(getattr(piece, "lineno", 0), kind, delete) for piece, kind, delete in found]


def sample(paths: list[Path], number: int, seed: int) -> list[Deletion]:
    """Return deletions in lines drawn at random; a line where none fits is drawn again, one that was drawn is not."""
    lines: list[list[Deletion]] = []
    for path in paths:
        text = path.read_text(encoding="utf-8")
        in_file: list[list[Deletion]] = [[] for _ in text.splitlines()]
        for i, (line, kind, _) in enumerate(deletions(ast.parse(text))):
            in_file[line - 1].append(Deletion(path, line, i, kind))
        lines += filter(None, in_file)
    generator = random.Random(seed)
    return [generator.choice(line) for line in generator.sample(lines, min(number, len(lines)))]


def enter_copy(folder: str) -> None:
    """Make a copy of the tracked files, as they are, the current directory of a worker process, and import much."""
    copy = Path(folder, str(os.getpid()))
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True).stdout
    for name in filter(None, tracked.split("\0")):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, copy / name)
    os.chdir(copy)
    sys.path[0] = os.environ["PYTHONPATH"] = str(copy)
    sys.dont_write_bytecode = True  # a file that is changed twice in a second would not be compiled again
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
    for module in "pytest", "tensorflow", "jieba":
        importlib.import_module(module)
    del sys.modules["tests"], sys.modules["tests.changed"]  # those of ROOT


def run_tests(files: list[str]) -> None:
    """Run tests in a process that was forked, print the one that failed, and end with pytest's exit status."""
    os.setsid()
    report = os.open("report", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    for descriptor, file in (0, os.open(os.devnull, os.O_RDWR)), (1, report), (2, report):
        os.dup2(file, descriptor)
    pytest = importlib.import_module("pytest")
    sys.exit(pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-m", FAST, *files]))


def outcome_of(tests: list[str]) -> tuple[bool, list[str]]:
    """Return whether a test failed, or all took too long, and the lines of pytest that say which one."""
    process = multiprocessing.get_context("fork").Process(target=run_tests, args=[tests])
    process.start()
    process.join(LONGEST_TESTS)
    is_endless = process.is_alive()
    with contextlib.suppress(ProcessLookupError):  # what the tests have left behind
        os.killpg(process.pid or 0, signal.SIGKILL)
    process.join()
    report = Path("report").read_text(encoding="utf-8", errors="replace").splitlines()
    if is_endless:
        return True, [f"FAILED {test} - not ended after {LONGEST_TESTS} seconds" for test in tests]
    was_noticed = process.exitcode not in (0, NONE_SELECTED)
    return was_noticed, [line for line in report if line.startswith(FAILURES)]


@functools.cache
def passes(*tests: str) -> bool:
    """Return whether tests pass without a deletion, in the same time."""
    return not outcome_of([*tests])[0]


def try_deletion(deletion: Deletion) -> tuple[Deletion, bool, str]:
    """Return the deletion, whether the tests noticed it, and its difference with the name of the test that failed."""
    text = deletion.path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    before = ast.unparse(tree).splitlines()
    deletions(tree)[deletion.number][2]()
    after = ast.unparse(tree)
    deletion.path.write_text(after + "\n", encoding="utf-8")
    try:
        was_noticed, failed = outcome_of(list(map(str, files_for(deletion.path))))
    finally:
        deletion.path.write_text(text, encoding="utf-8")
    names = [line.partition(" ")[2].partition(" - ")[0] for line in failed if line.startswith(FAILURES)]
    if names and not passes(*names):
        was_noticed, failed = False, [f"FAILS WITHOUT THE DELETION, TOO: {name}" for name in names]
    difference = list(difflib.unified_diff(before, after.splitlines(), n=3, lineterm=""))[3:]
    return deletion, was_noticed, "\n".join([*difference, *failed])


def main() -> None:
    """Try the deletions; print the unnoticed ones as they are found, then the share of noticed ones by package."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("path", nargs="*", type=Path, default=[Path("chatbot")], help="files or folders; default: all")
    parser.add_argument("--number", type=int, default=200, help="deletions to try; default: 200")
    parser.add_argument("--seed", type=int, default=0, help="of the sample; default: 0")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="default: one a core")
    parser.add_argument("--show", action="store_true", help="also the noticed ones, with the test that noticed")
    arguments = parser.parse_args()
    os.chdir(ROOT)
    paths = [file for path in arguments.path for file in (sorted(path.rglob("*.py")) if path.is_dir() else [path])]
    noticed, tried = Counter[str](), Counter[str]()
    with (
        tempfile.TemporaryDirectory() as folder,
        ProcessPoolExecutor(arguments.processes, initializer=enter_copy, initargs=(folder,)) as pool,
    ):
        chosen = sample(paths, arguments.number, arguments.seed)
        for deletion, was_noticed, difference in tqdm(pool.map(try_deletion, chosen), total=len(chosen)):
            package = deletion.path.parts[1].removesuffix(".py")
            tried[package] += 1
            noticed[package] += was_noticed
            if arguments.show or not was_noticed:
                word = "noticed" if was_noticed else "unnoticed"
                tqdm.write(f"\n{word}: {deletion.kind}, {deletion.path}:{deletion.line}\n{difference}")
    for package in sorted(tried):
        print(f"{package:12} {noticed[package]:4} of {tried[package]}")
    print(f"{'all':12} {noticed.total():4} of {tried.total()}: {noticed.total() / max(1, tried.total()):.0%}")


if __name__ == "__main__":
    main()
