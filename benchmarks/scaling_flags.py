"""The flags of python -m benchmarks scaling, and the pairs that it trains on."""

import dataclasses

import numpy as np

from benchmarks.model_flags import ModelFlags
from benchmarks.ring import LINKS
from chatbot.corpus.pair_ids import EncodedPairs, Ragged
from chatbot.corpus.vocabulary import SPECIALS
from chatbot.errors import UserError
from chatbot.flags import setting


@dataclasses.dataclass(frozen=True)
class ScalingBenchmark(ModelFlags):
    """The flags of python -m benchmarks scaling."""

    batch_size: int = setting(256, "pairs in a step of towers, and in a step of one process", group="model", least=2)
    steps: int = setting(3, "steps in a turn", group="measuring", least=1)
    towers: int = setting(4, "measure 1, 2, 4, ... towers up to this number, and their start; 0: none", least=0)
    processes: bool = setting(True, "measure 1 and 2 processes, each pinned to a core")
    plan: bool = setting(False, "predict the speed-up of 2 to 1,024 GPUs from the measured step", group="plan")
    link: str | None = setting(None, "the slowest link between the GPUs; default: all", choices=tuple(LINKS))
    step_ms: float | None = setting(None, "milliseconds of a step of one GPU, if measured elsewhere", above=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.towers > self.batch_size:
            raise UserError(
                f"--towers {self.towers}: more than the {self.batch_size} pairs of a step; give a larger --batch-size"
            )

    @property
    def tower_numbers(self) -> list[int]:
        """The measured numbers of towers: the powers of two up to --towers."""
        return [2**i for i in range(self.towers.bit_length())]

    def pairs(self) -> EncodedPairs:
        """Return pairs of one length, so that all batches have one shape and no position is padding.

        The ids follow Zipf's law, as words do: so many different ones are looked up in a step as in text.
        """
        rng, words = np.random.default_rng(1), self.vocabulary_size - len(SPECIALS)
        drawn = rng.random((2, 4 * self.batch_size, self.max_length))
        rows = (np.exp(drawn * np.log(words)).astype(np.int64) - 1 + len(SPECIALS)).tolist()
        sources, targets = Ragged.from_rows(rows[0]), Ragged.from_rows([row[:-1] for row in rows[1]])
        return EncodedPairs.question_to_answer(sources, targets, targets.lengths)
