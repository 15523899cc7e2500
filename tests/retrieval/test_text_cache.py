"""The cache of values of texts."""

from chatbot.retrieval.text_cache import TextCache


def test_missing_texts_are_computed_in_one_call_and_a_full_cache_starts_anew() -> None:
    calls: list[list[str]] = []

    def compute(texts: list[str]) -> list[int]:
        calls.append(texts)
        return [len(text) for text in texts]

    cache = TextCache(compute, 2)
    assert cache(["a", "bb", "a"]) == [1, 2, 1]
    assert cache(["bb", "a"]) == [2, 1]  # both are cached
    assert cache(["a", "ccc"]) == [1, 3]  # full: only the new value is kept
    assert cache(["ccc"]) == [3]
    assert cache(["a"]) == [1]
    assert calls == [["a", "bb"], ["ccc"], ["a"]]
