from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.text import ascii_only, code_block, code_span, encodable, markdown, printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b]0;owned\x07", r"\x1b]0;owned\x07"),
        ("tr\udcffain", r"tr\xffain"),
        ("a\nb\rc", r"a\x0ab\x0dc"),
        ("\u202eevil", r"\u202eevil"),
        ("\x9b31m", r"\x9b31m"),
        ("ein Über-Test ±3 °C", "ein Über-Test ±3 °C"),
    ],
)
def test_control_characters_are_shown_as_codes(text: str, shown: str) -> None:
    assert printable(text) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("<script>alert(1)</script>", r"\<script>alert(1)\</script>"),
        ("a | b", r"a \| b"),
        ("[red]x[/red](http://evil)", r"\[red\]x\[/red\](http://evil)"),
        ("`rm -rf`", r"\`rm -rf\`"),
        ("num_workers", "num_workers"),
        ("__init__ *bold* _it_", r"\_\_init\_\_ \*bold\* \_it\_"),
        ("&lt; & b", r"\&lt; & b"),
        ("a < 10, b <= 5", "a < 10, b <= 5"),
        ("# not a heading\n# nor this", r"# not a heading\\x0a# nor this"),
    ],
)
def test_markdown_shows_text_as_text(text: str, shown: str) -> None:
    assert markdown(text) == shown


@given(st.text())
def test_markdown_never_holds_a_raw_control_html_or_open_pipe(text: str) -> None:
    shown = markdown(text)
    unescaped = re.sub(r"\\.", "", shown)
    assert not re.search("<[^ =0-9]|<$", unescaped)
    assert shown.isprintable() or not printable(text).isprintable()
    assert "|" not in shown.replace(r"\|", "")


@given(st.text(alphabet=st.characters(codec="utf-8") | st.sampled_from("`|~")))
def test_fence_cannot_be_closed_from_within(text: str) -> None:
    block = code_block(text, "diff").split("\n")
    fence = block[-1]
    assert set(fence) == {"`"}
    assert block[0] == f"{fence}diff"
    assert not any(fence in line for line in block[1:-1])


def test_inline_code_keeps_backticks_and_stays_in_its_table_cell() -> None:
    assert code_span("a`b") == "``a`b``"
    assert code_span("`a`") == "`` `a` ``"
    assert code_span("a|b") == r"`a\|b`"


@given(st.text())
def test_encodable_text_can_be_written_as_utf8_and_is_otherwise_untouched(text: str) -> None:
    assert encodable(text).encode("utf-8").decode("utf-8") == text if text.isascii() else encodable(text).encode()


@given(st.text(alphabet=st.characters(codec="utf-8")))
def test_ascii_only_is_ascii(text: str) -> None:
    assert ascii_only(text).isascii()


def test_ascii_keeps_the_meaning_of_our_own_glyphs() -> None:
    assert ascii_only("58% ±31, 61 °C → ▁▄█") == "58% +/-31, 61 deg C -> _-#"
