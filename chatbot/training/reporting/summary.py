"""The end of a run: why it stopped, replies of the best checkpoint, a summary, and the commands to use next."""

from chatbot.config.attempts import CHECKPOINTS, is_validated
from chatbot.config.corpus import NONE
from chatbot.config.decoding import DecodingSettings
from chatbot.config.stored import with_default_search
from chatbot.corpus.reading.display import counted
from chatbot.evaluation.curves import METRICS, draw, read_records
from chatbot.flags import program
from chatbot.training.checkpoints.progress import shown
from chatbot.training.lines import question_line, wrapped
from chatbot.training.reporting.time_left import duration
from chatbot.training.result import INTERRUPTED
from chatbot.training.run import Run
from chatbot.training.streams import error_stream, line_stream

CURVES = "curves.png"
# With fewer records, a curve shows nothing.
FEWEST_RECORDS = 20


def conclude(run: Run, stop: str, first_step: int, seconds: float) -> None:
    """Print why the run ended; on the chief also replies, a summary and the next command. Draws curves.png.

    stop: the reason. first_step, seconds: of this process: the step that it began after, and its time.
    """
    attempt, progress, output = run.settings.run.attempt, run.progress, line_stream()
    stopped = f"Stopped at step {progress.step:,}: {stop}."
    if not run.team.chief:
        print(stopped)
        return
    lines = [wrapped(stopped, output.columns)]
    if stop != INTERRUPTED:
        lines += ["Sample replies:", *_replies(run, output.columns)]
    lines.append(f"Time: {duration(seconds)} for {counted(max(0, progress.step - first_step), 'step')}")
    lines.append(f"Best: {_best(run)}")
    if _drawn(run):
        lines.append(f"Picture: {CHECKPOINTS / attempt / CURVES}")
    if run.settings.run.report_to != NONE:
        lines.append(f"Curves: tensorboard --logdir tensorboard/{attempt}")
    chat = f"{program('chat.py')} --attempt {attempt}"
    resumes = f"Saved. The same command resumes from here; to talk to it: {chat}"
    lines.append(resumes if stop == INTERRUPTED else f"Talk to it: {chat}")
    output.write("".join(f"{line}\n" for line in lines))
    output.flush()


def _replies(run: Run, columns: int | None) -> list[str]:
    """Return a line for each sample and each question of --probe, with the reply of the best checkpoint as in chat."""
    run.checkpoints.load_best(run.progress)
    if is_validated(run.settings.run.directory):
        replies = run.validator.chat_replies(with_default_search(DecodingSettings(), run.settings.run.directory))
    else:  # learned by heart: greedy search finds the replies of beam search, and is traced already
        replies = run.validator.replies()
    pairs = zip(run.data.shown, replies, strict=True)
    return [question_line(sample.question, reply, columns) for sample, reply in pairs]


def _best(run: Run) -> str:
    """Return which checkpoint is the best, and where it is."""
    progress, folder = run.progress, CHECKPOINTS / run.settings.run.attempt
    if progress.best_value is None:
        return f"the last checkpoint, of step {progress.step:,}, in {folder}"
    return f"{shown(progress.best_value, progress.best_by)} at step {progress.best_step:,}, in {folder}"


def _drawn(run: Run) -> bool:
    """Draw the learning curves. A failure is a warning: the run is saved."""
    directory = run.settings.run.directory
    try:
        records = read_records(directory / METRICS)
        if len(records) >= FEWEST_RECORDS:
            draw([(run.settings.run.attempt, records)], directory / CURVES)
            return True
    except Exception as error:  # of a drawing library: fonts, files, memory
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:150]
        error_stream().write(f"Warning: {CURVES} cannot be drawn ({reason}).\n")
    return False
