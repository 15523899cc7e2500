"""What the services share: the limit of the rate of each client."""

from chatbot.chat.service import RateLimit


def test_limit_recovers_with_time() -> None:
    now = 0.0
    limit = RateLimit(3, clock=lambda: now)
    assert [limit.wait("a") for _ in range(5)] == [0, 0, 0, 20, 20]
    now = 19.0
    assert limit.wait("a") == 1
    assert not limit.is_first_refusal("a")
    now = 20.0
    assert [limit.wait("a"), limit.wait("a"), limit.wait("b")] == [0, 20, 0]
    assert limit.is_first_refusal("a")
    now = 1000.0
    assert [limit.wait("a") for _ in range(4)] == [0, 0, 0, 20]
    for number in range(30_000):
        limit.wait(str(number))
    assert len(limit._buckets) == 10_000
    assert RateLimit(0).wait("a") == 0
