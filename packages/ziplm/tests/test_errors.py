"""Errors are one printable line of bounded length, whatever the values in them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ziplm.errors import LONGEST, ZipLMError, one_line

ANY_TEXT = st.text(st.characters(codec=None, exclude_categories=()), max_size=2000)


@given(ANY_TEXT, ANY_TEXT)
def test_an_error_is_one_short_line(message: str, hint: str) -> None:
    text = str(ZipLMError(message, hint))
    assert len(text) <= LONGEST
    assert len(text.splitlines()) == 1
    text.encode()


def test_a_long_value_is_cut_in_the_middle() -> None:
    error = ZipLMError(f"the value is {'x' * 10_000} but must be short", "shorten it")
    assert str(error).startswith("the value is xxx")
    assert str(error).endswith("xxx but must be short; shorten it")
    assert str(ZipLMError("a", "b")) == "a; b"


@pytest.mark.parametrize(
    ("text", "line"),
    [("", "ValueError"), ("a\nb", "a"), ("field x:\n    expected int\nmore", "field x: expected int")],
)
def test_the_first_line_of_another_error_says_what_is_wrong(text: str, line: str) -> None:
    assert one_line(ValueError(text)) == line
