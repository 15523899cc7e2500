"""Plants a random sample of small mistakes, one at a time, and counts how many of them the tests notice.

cosmic-ray knows the mistakes (operators, comparisons, conditions, numbers, loops) and changes files on disk, so any
tests can run, with TensorFlow and processes of their own. The files are those of copies of the tree, one for each
process. A mistake is noticed if a test fails in the file that mirrors the changed one or beside it.
"""

import argparse
import contextlib
import difflib
import importlib
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from cosmic_ray.commands.init import init
from cosmic_ray.mutating import use_mutation
from cosmic_ray.plugins import get_operator
from cosmic_ray.work_db import use_db
from cosmic_ray.work_item import MutationSpec
from tqdm import tqdm

ROOT = Path(__file__).parents[1]
# These mostly raise an error when the file is imported, which any test notices: `int | None` is an operator, too.
LOUD = "BitOr", "BitAnd", "BitXor", "ExceptionReplacer", "RemoveDecorator", "MatMul"
FAST = "not slow and not gpu"
LONGEST_TESTS = 900  # seconds; a mistake without an end is noticed
READING = Path("tests/corpus/reading")  # has the files as people have them, which its packages read; 30 s


def mistakes(paths: list[Path], number: int, seed: int) -> list[MutationSpec]:
    """Return a random sample of places in these files, with one mistake for each.

    A place where many operators fit is as likely as one where one fits.
    """
    places: dict[tuple[object, ...], list[MutationSpec]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder, use_db(f"{folder}/session.sqlite") as session:
        init(paths, session, {})
        for item in session.work_items:
            (mistake,) = item.mutations
            if not any(word in mistake.operator_name for word in LOUD):
                places[mistake.module_path, mistake.start_pos].append(mistake)
    generator = random.Random(seed)
    chosen = generator.sample(sorted(places), min(number, len(places)))
    return [generator.choice(sorted(places[place], key=lambda m: (m.operator_name, m.occurrence))) for place in chosen]


def mirrored_tests(path: Path) -> list[str]:
    """Return chatbot/a/b.py -> tests/a/test_b.py, if it exists, and the other files of tests/a (and of READING)."""
    folder = Path("tests", *path.parent.parts[1:])
    while not list(folder.glob("test_*.py")):
        folder = folder.parent
    mirror = folder / f"test_{path.stem}.py"
    files = sorted(folder.glob("test_*.py"), key=lambda file: (file != mirror, file.name))
    whole = sorted(READING.glob("test_*.py")) if READING in folder.parents else []
    return [str(file) for file in (*files, *whole)]


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
    del sys.modules["tests"]  # that of ROOT


def run_tests(files: list[str]) -> None:
    """Run tests in a process that was forked, and end it with pytest's exit status."""
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(null, descriptor)
    pytest = importlib.import_module("pytest")
    sys.exit(pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-m", FAST, *files]))


def try_mistake(mistake: MutationSpec) -> tuple[MutationSpec, bool, str]:
    """Return the mistake, whether the tests noticed it, and its difference."""
    operator = get_operator(mistake.operator_name)(**mistake.operator_args)
    with use_mutation(mistake.module_path, operator, mistake.occurrence) as (before, after):
        process = multiprocessing.get_context("fork").Process(
            target=run_tests, args=[mirrored_tests(mistake.module_path)]
        )
        process.start()
        process.join(LONGEST_TESTS)
        with contextlib.suppress(ProcessLookupError):  # what the tests have left behind
            os.killpg(process.pid or 0, signal.SIGKILL)
        process.join()
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), str(mistake.module_path), n=2, lineterm="")
    return mistake, process.exitcode != 0, "\n".join(lines)


def main() -> None:
    """Try the mistakes; print the unnoticed ones as they are found, then the share of noticed ones by package."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("path", nargs="*", type=Path, default=[Path("chatbot")], help="files or folders; default: all")
    parser.add_argument("--number", type=int, default=300, help="mistakes to try; default: 300")
    parser.add_argument("--seed", type=int, default=0, help="of the sample; default: 0")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="default: one a core")
    arguments = parser.parse_args()
    os.chdir(ROOT)
    paths = [file for path in arguments.path for file in (sorted(path.rglob("*.py")) if path.is_dir() else [path])]
    noticed, tried = Counter[str](), Counter[str]()
    with (
        tempfile.TemporaryDirectory() as folder,
        ProcessPoolExecutor(arguments.processes, initializer=enter_copy, initargs=(folder,)) as pool,
    ):
        results = pool.map(try_mistake, mistakes(paths, arguments.number, arguments.seed))
        for mistake, was_noticed, difference in tqdm(results, total=arguments.number):
            package = mistake.module_path.parts[1].removesuffix(".py")
            tried[package] += 1
            noticed[package] += was_noticed
            if not was_noticed:
                tqdm.write(f"\nunnoticed: {mistake.operator_name}\n{difference}")
    for package in sorted(tried):
        print(f"{package:12} {noticed[package]:4} of {tried[package]}")
    print(f"{'all':12} {noticed.total():4} of {tried.total()}: {noticed.total() / max(1, tried.total()):.0%}")


if __name__ == "__main__":
    main()
