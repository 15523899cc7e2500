"""Mutation testing: deletes random pieces of the product, one at a time, and counts how many deletions tests notice.

A piece is a statement, a condition, a keyword argument or an element of a list. Lines are drawn uniformly over the
product by a seed. Each worker process changes files in a copy of the tree. A deletion is noticed if a test fails in the
file that mirrors the changed one, in a neighbour of it, or in a file that imports the changed one.
"""

import argparse
import ast
import contextlib
import difflib
import functools
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
MAX_TEST_TIME = 400  # seconds; tests that take longer, but not without the deletion, have noticed it
FAILURES = "FAILED tests/", "ERROR tests/"  # prefixes of pytest's lines, which logs do not have
NONE_SELECTED = 5  # pytest's exit status if all tests of the files are deselected


class Deletion(NamedTuple):
    """The deletion with this number in the result of `deletions` for a file."""

    path: Path
    line: int
    number: int
    kind: str


Delete = Callable[[], object]


def pieces(node: ast.AST) -> Iterator[tuple[ast.AST, str, Delete]]:
    """Yield each piece directly in a node, its kind, and a function that deletes it from the tree."""
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
    """Return whether a statement has an effect, and later ones do not fail immediately for a missing name."""
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
    """Yield a node and its descendants, without types, decorators and assertions."""
    yield node
    for name, value in ast.iter_fields(node):
        if name not in ("annotation", "returns", "decorator_list"):
            for child in value if isinstance(value, list) else [value]:
                is_type = isinstance(node, ast.Subscript) and name == "slice"
                if isinstance(child, ast.AST) and not isinstance(child, ast.Assert) and not is_type:
                    yield from walk(child)


def deletions(tree: ast.Module) -> list[tuple[int, str, Delete]]:
    """Return the line and kind of each deletion, and a function that applies it to the tree."""
    found = [piece for node in walk(tree) for piece in pieces(node)]
    return [(getattr(piece, "lineno", 0), kind, delete) for piece, kind, delete in found]


def sample(paths: list[Path], number: int, seed: int) -> list[Deletion]:
    """Draw lines with deletions at random, without replacement, and one deletion for each."""
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
    """Copy the tracked files as they are, and make the copy the current directory of a worker process."""
    copy = Path(folder, str(os.getpid()))
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True).stdout
    for name in filter(None, tracked.split("\0")):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, copy / name)
    os.chdir(copy)


def outcome_of(tests: list[str]) -> tuple[bool, list[str]]:
    """Return whether a test failed, or all took too long, and pytest's lines about failures."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", FAST, *tests]
    # With bytecode files, a file that changes twice in a second would not be compiled again.
    environment = {**os.environ, "PYTHONPATH": str(Path.cwd()), "PYTHONDONTWRITEBYTECODE": "1"}
    with Path("report").open("w", encoding="utf-8") as report:
        process = subprocess.Popen(command, env=environment, stdout=report, stderr=report, start_new_session=True)
    try:
        was_noticed = process.wait(MAX_TEST_TIME) not in (0, NONE_SELECTED)
    except subprocess.TimeoutExpired:
        return True, [f"FAILED {test} - not ended after {MAX_TEST_TIME} seconds" for test in tests]
    finally:
        with contextlib.suppress(ProcessLookupError):  # processes that the tests have left behind
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    lines = Path("report").read_text(encoding="utf-8", errors="replace").splitlines()
    return was_noticed, [line for line in lines if line.startswith(FAILURES)]


@functools.cache
def passes(*tests: str) -> bool:
    """Return whether tests pass without a deletion, in the maximum time."""
    return not outcome_of([*tests])[0]


def try_deletion(deletion: Deletion) -> tuple[Deletion, bool, str]:
    """Return the deletion, whether the tests noticed it, and its diff with the name of the failed test."""
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
    names = [line.partition(" ")[2].partition(" - ")[0] for line in failed]
    if names and not passes(*names):
        was_noticed, failed = False, [f"FAILS WITHOUT THE DELETION, TOO: {name}" for name in names]
    difference = list(difflib.unified_diff(before, after.splitlines(), n=3, lineterm=""))[3:]
    return deletion, was_noticed, "\n".join([*difference, *failed])


def main() -> None:
    """Try the deletions. Print unnoticed ones as they are found, then the counts by package."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("path", nargs="*", type=Path, default=[Path("chatbot")], help="files or folders; default: all")
    parser.add_argument("--number", type=int, default=200, help="deletions to try; default: 200")
    parser.add_argument("--seed", type=int, default=0, help="seed of the sample; default: 0")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="worker processes; default: one per core")
    parser.add_argument("--show", action="store_true", help="also print noticed deletions, with the failed test")
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
