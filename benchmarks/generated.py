"""A corpus of any size, made up: Zipf-like words of jieba's dictionary, at the lengths that people chat in."""

from pathlib import Path

import jieba
import numpy as np
from tqdm import tqdm

WORDS = 200_000
# Zipf's law as Mandelbrot has it: the word of rank r occurs in proportion to (r + 2.7) ** -1.
SHIFT = 2.7
# Words of an utterance: log-normal, 7 the median and 9 the mean, about 15 characters, as in Weibo's replies.
MEDIAN, SPREAD, LONGEST = 7.0, 0.65, 60
STOCK = ["哈哈", "呵呵", "我也是", "谢谢", "是啊", "哈哈哈哈", "好的", "不知道", "加油！", "真的吗？", "嗯嗯", "晚安"]
STOCK_SHARE = 0.05
AT_ONCE = 100_000


def write_corpus(path: Path, pairs: int, seed: int = 1) -> None:
    """Write so many pairs as .tsv; the same numbers give the same file."""
    rng = np.random.default_rng(seed)
    words = _frequent_words()
    weights = 1 / (np.arange(len(words)) + SHIFT)
    ends = np.cumsum(weights / weights.sum())
    marks = np.array(["，", "。", "！", "？", "……", "~"])
    with path.open("w", encoding="utf-8") as file, tqdm(total=pairs, desc="Writing", unit=" pairs", leave=False) as bar:
        for start in range(0, pairs, AT_ONCE):
            count = min(AT_ONCE, pairs - start)
            lengths = np.exp(rng.normal(np.log(MEDIAN), SPREAD, 2 * count)).astype(int).clip(1, LONGEST)
            drawn = words[np.searchsorted(ends, rng.random(int(lengths.sum()))).clip(0, len(words) - 1)]
            comma = rng.random(len(drawn)) < 0.1
            drawn = np.where(comma, np.char.add(drawn.astype(str), marks[0]), drawn.astype(str)).tolist()
            final = marks[rng.integers(1, len(marks), 2 * count)].tolist()
            stock = (rng.random(count) < STOCK_SHARE).tolist()
            which = np.minimum(rng.zipf(1.5, count) - 1, len(STOCK) - 1).tolist()
            at = np.concatenate([[0], np.cumsum(lengths)]).tolist()
            texts = ["".join(drawn[at[i] : at[i + 1]]) + final[i] for i in range(2 * count)]
            for i in range(count):
                answer = STOCK[which[i]] if stock[i] else texts[2 * i + 1]
                file.write(f"{texts[2 * i]}\t{answer}\n")
            bar.update(count)


def _frequent_words() -> np.ndarray:
    """The most frequent words of jieba's dictionary that are written in Chinese characters, in that order."""
    tokenizer = jieba.Tokenizer()
    tokenizer.initialize()
    chinese = [(-count, word) for word, count in tokenizer.FREQ.items() if count and "\u4e00" <= word[0] <= "\u9fff"]
    return np.array([word for _, word in sorted(chinese)[:WORDS]])
