"""A rule's own page: its docstring, laid out."""

from __future__ import annotations

from gpuwatch.dashboard.panels.page import Page
from gpuwatch.dashboard.text import Line
from gpuwatch.dashboard.themes import Look


def rule_page(rule_id: str, text: str | None, width: int, look: Look) -> list[Line]:
    """The page: the sentence, then the sections that the docstring indents under their names."""
    page = Page(width, look)
    page.heading(rule_id)
    if text is None:
        page.prose("There is no page for this rule.", look.dim)
        return page.lines
    paragraph: list[str] = []
    indent = 0

    def flush() -> None:
        if paragraph:
            page.prose(" ".join(paragraph), indent=2 if indent == 0 else 4)
            paragraph.clear()

    for line in text.splitlines():
        stripped = line.strip()
        depth = len(line) - len(line.lstrip())
        if stripped and depth == 0 and stripped.endswith(":") and len(stripped) < 30:
            flush()
            page.gap()
            page.prose(stripped.rstrip(":"), look.title)
            indent = 4
            continue
        if not stripped or depth != indent:
            flush()
            indent = depth if stripped else indent
        if stripped:
            paragraph.append(stripped)
    flush()
    return page.lines
