"""Times of messages in every form, beside datetime.strptime as the slow twin."""

import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatbot.corpus.reading.turns import detect_time_form, seconds

UTC = datetime.timezone.utc
# A layout of strptime, and the form that times.py finds; half days and months are in English, as strptime reads them.
LAYOUTS = [
    *(("%Y-%m-%d %H:%M:%S", "ymd"), ("%Y/%m/%d %H:%M", "ymd"), ("%Y-%m-%dT%H:%M:%S.%fZ", "ymd")),
    *(("%Y年%m月%d日 %H:%M", "ymd"), ("%Y.%m.%d %I:%M:%S %p", "ymd"), ("%y-%m-%d %H:%M:%S", "ymd")),
    *(("%d.%m.%Y, %H:%M", "dmy"), ("%d/%m/%Y %H:%M:%S", "dmy"), ("%d %b %Y %H:%M", "dmy")),
    *(("%m/%d/%Y %I:%M %p", "mdy"), ("%b %d, %Y %I:%M:%S %p", "mdy"), ("%m/%d/%y, %I:%M %p", "mdy")),
    *(("%Y%m%d%H%M%S", "compact"), ("%Y%m%d%H%M", "compact")),
]
MOMENTS = st.datetimes(datetime.datetime(2001, 1, 1), datetime.datetime(2025, 12, 31))  # not in the future


@pytest.mark.parametrize(("layout", "form"), LAYOUTS)
@given(moment=MOMENTS)
def test_dates_are_those_that_strptime_reads(layout: str, form: str, moment: datetime.datetime) -> None:
    text = moment.strftime(layout)
    expected = datetime.datetime.strptime(text, layout).replace(microsecond=0, tzinfo=UTC).timestamp()
    if layout.startswith("%y") and moment.year < 2032:
        assert seconds(text, "ymd") is None  # a day may come first
        return
    assert seconds(text, form) == expected
    certain = moment.replace(day=moment.day % 16 + 13).strftime(layout)  # no month
    assert detect_time_form([certain, text])[0] == form


@given(moment=MOMENTS)
def test_numbers_of_seconds_and_days(moment: datetime.datetime) -> None:
    stamp = moment.replace(microsecond=0, tzinfo=UTC).timestamp()
    for scale in (1, 1000, 1_000_000):
        text = str(int(stamp * scale))
        assert detect_time_form([text]) == ("epoch", "", False)
        assert seconds(text, "epoch") == stamp
    days = (moment - datetime.datetime(1899, 12, 30)).total_seconds() / 86400  # as Excel counts them
    assert detect_time_form([str(days)]) == ("days", "", False)
    assert seconds(str(days), "days") == pytest.approx(moment.replace(tzinfo=UTC).timestamp(), abs=1e-3)


@pytest.mark.parametrize(
    ("text", "clock"),
    [
        ("2024/1/5 上午8:05", (8, 5)),
        ("2024/1/5 下午8:05", (20, 5)),
        ("2024/1/5 凌晨12:05", (0, 5)),
        ("2024/1/5 中午12:05", (12, 5)),
        ("2024년 1월 5일 오후 8:05", (20, 5)),
        ("2024/01/05 午後8:05", (20, 5)),
        ("2024-01-05 8:05 p.m.", (20, 5)),
        ("2024-01-05 12:05\u202fAM", (0, 5)),
        ("2024-01-05, 8:05 م", (20, 5)),
    ],
)
def test_halves_of_days_in_other_languages(text: str, clock: tuple[int, int]) -> None:
    assert seconds(text, "ymd") == datetime.datetime(2024, 1, 5, *clock, tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("times", "form", "unknown"),
    [
        ([], "", ""),
        (["10:15", "下午3:20"], "", ""),  # clocks tell no pause
        (["soon", "later"], "", "times such as 'soon' cannot be parsed"),
        (["2024-01-05 10:00", "soon"], "", "times such as 'soon' cannot be parsed"),
        (["05/06/2024 10:00", "05/06/2024 10:05"], "dmy", ""),  # a day or a month: it is the same day
        (["05/06/2024 10:00", "06/06/2024 10:05"], "dmy", ""),  # either way a day or more has passed
        (["12/06/2024 23:59", "01/07/2024 00:01"], "dmy", "times such as '12/06/2024 23:59' may begin with the day or"),
        (["02/01/2024 00:01", "01/01/2024 23:59"], "dmy", "times such as '02/01/2024 00:01' may begin with the day or"),
        (["12/06/2024 11:59 PM", "12/06/2024 0:01 PM"], "dmy", ""),  # as a clock without AM and PM
        (["12/06/2024 11:59 PM", "01/07/2024 0:01 AM"], "dmy", "may begin with the day or the month"),
        (["13/06/2024 10:00", "01/07/2024 10:00"], "dmy", ""),
        (["06/13/2024 10:00", "07/01/2024 10:00"], "mdy", ""),
        (["2024-01-05 10:00", "2099-01-05 10:01"], "ymd", "times such as '2099-01-05 10:01' lie in the future"),
        (["4102444800000", "1704448800000"], "epoch", "times such as '4102444800000' lie in the future"),
        (["01-06 14:00:00", "01-06 14:00:20"], "ymd", ""),  # of chatlog, without a year
    ],
)
def test_one_form_for_all_times(times: list[str], form: str, unknown: str) -> None:
    found, said, _ = detect_time_form(times)
    assert found == form
    assert unknown in said
    assert bool(unknown) == bool(said)


def test_the_user_decides_ambiguous_times() -> None:
    either, day_first = ["12/06/2024 23:59", "01/07/2024 00:01"], ["12/06/2024 23:59", "13/06/2024 00:01"]
    assert detect_time_form(either, "mdy") == ("mdy", "", False)
    assert detect_time_form(day_first, "mdy") == detect_time_form(day_first) == ("dmy", "", False)
    assert detect_time_form(either[:1]) == ("dmy", "", True)
