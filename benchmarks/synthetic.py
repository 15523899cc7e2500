"""Generates a synthetic corpus of words from jieba's dictionary, with realistic word frequencies and lengths."""

from pathlib import Path

import jieba
import numpy as np
from tqdm import tqdm

WORDS = 200_000
# By the Zipf-Mandelbrot law, the frequency of the word with rank r is proportional to 1 / (r + SHIFT).
SHIFT = 2.7
# The number of words in a text has a log-normal distribution with median 7 and mean 9, as in replies on Weibo.
MEDIAN = 7.0
SPREAD = 0.65
MAX_WORDS = 60
COMMON_REPLIES = [
    "哈哈",
    "呵呵",
    "我也是",
    "谢谢",
    "是啊",
    "哈哈哈哈",
    "好的",
    "不知道",
    "加油！",
    "真的吗？",
    "嗯嗯",
    "晚安",
]
COMMON_REPLY_SHARE = 0.05
PAIRS_PER_CHUNK = 100_000


def write_corpus(path: Path, pairs: int) -> None:
    """Write a .tsv file with this number of pairs. The content is the same on every call."""
    rng = np.random.default_rng(1)
    words = _frequent_words()
    weights = 1 / (np.arange(len(words)) + SHIFT)
    ends = np.cumsum(weights / weights.sum())
    marks = np.array(["，", "。", "！", "？", "……", "~"])
    with path.open("w", encoding="utf-8") as file, tqdm(total=pairs, desc="Writing", unit=" pairs", leave=False) as bar:
        for start in range(0, pairs, PAIRS_PER_CHUNK):
            count = min(PAIRS_PER_CHUNK, pairs - start)
            lengths = np.exp(rng.normal(np.log(MEDIAN), SPREAD, 2 * count)).astype(int).clip(1, MAX_WORDS)
            drawn = words[np.searchsorted(ends, rng.random(int(lengths.sum()))).clip(0, len(words) - 1)]
            comma = rng.random(len(drawn)) < 0.1
            drawn = np.where(comma, np.char.add(drawn.astype(str), marks[0]), drawn.astype(str)).tolist()
            final = marks[rng.integers(1, len(marks), 2 * count)].tolist()
            is_common = (rng.random(count) < COMMON_REPLY_SHARE).tolist()
            which = np.minimum(rng.zipf(1.5, count) - 1, len(COMMON_REPLIES) - 1).tolist()
            starts = np.concatenate([[0], np.cumsum(lengths)]).tolist()
            texts = ["".join(drawn[starts[i] : starts[i + 1]]) + final[i] for i in range(2 * count)]
            for i in range(count):
                answer = COMMON_REPLIES[which[i]] if is_common[i] else texts[2 * i + 1]
                file.write(f"{texts[2 * i]}\t{answer}\n")
            bar.update(count)


def _frequent_words() -> np.ndarray:
    """Return the most frequent words in jieba's dictionary, in descending order. All start with a Chinese character."""
    tokenizer = jieba.Tokenizer()
    tokenizer.initialize()
    chinese = [(-count, word) for word, count in tokenizer.FREQ.items() if count and "\u4e00" <= word[0] <= "\u9fff"]
    return np.array([word for _, word in sorted(chinese)[:WORDS]])
