"""A rule's page in parts: its sentence, then headed paragraphs, in the order of every page."""

from __future__ import annotations

from dataclasses import dataclass

from gpuwatch.diagnosis.rule import Rule

HEADINGS = ("Means", "Evidence", "Fires", "Clears", "Not when", "Causes", "Fix", "Gain", "Verify", "Source")


@dataclass(frozen=True, slots=True)
class Section:
    """One headed paragraph; the text is one line, to be wrapped where it is shown."""

    heading: str
    text: str


def sections(rule: Rule) -> tuple[Section, ...]:
    """The paragraphs below the rule's sentence."""
    found: list[Section] = []
    heading, words = "", list[str]()
    for line in [*rule.page.splitlines()[1:], "End:"]:
        if line.endswith(":") and not line.startswith(" "):
            if heading:
                found.append(Section(heading, " ".join(words)))
            heading, words = line.removesuffix(":"), []
        else:
            words.extend(line.split())
    return tuple(found)
