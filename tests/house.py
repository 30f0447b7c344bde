"""`python -m tests.house`: what the tree of the package is like, in figures, each with where it should be.

A module has one importer when a single other module imports it, and that one lies in the same folder; `__init__` and
`__main__` are left out. A circle is a chain of imports that comes back to where it began; imports within functions
count, those for type checking do not.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp

ROOT = Path(__file__).resolve().parents[1]
GENERATED = "docs/diagnosis-accuracy.md"
"""Written by a run of hours: its words follow the next time."""
RENAMED = '"rung": "visibility",\n    "climb": "how_to_see_more",'
"""Names that recordings of version 1 hold."""
DIALECT = re.compile(
    r"\b(told|anew|dear|dearest|rungs?|climbs?|by turns|held against|so manieth|homecoming|scribe|leash|heeds?|warmth"
    r"|beside|afresh|un(?:say|says|said)|wavers|seldom|for ever|thereof|whereof|in vain|at hand|of whom|so many)\b",
    re.IGNORECASE,
)


def main() -> int:
    files = tracked("gpuwatch/*.py")
    texts = [path.read_text(encoding="utf-8") for path in files]
    documents = [path.read_text(encoding="utf-8") for path in tracked("docs/*.md", "README.md", f":!{GENERATED}")]
    graph = grimp.build_graph("gpuwatch", exclude_type_checking_imports=True, cache_dir=None)
    imports = {name: set(graph.find_modules_directly_imported_by(name)) for name in graph.modules}
    words = Counter(
        match.group().lower() for text in (*texts, *documents) for match in DIALECT.finditer(text.replace(RENAMED, ""))
    )
    print(f"{len(files):6} files (at most 300)")
    print(f"{sum(text.count(chr(10)) for text in texts):6} lines (at most 58000)")
    found = circles(imports)
    print(f"{len(found):6} circles (0)", *(" > ".join(chain) for chain in found), sep="\n         ")
    print(f"{len(one_importer(imports)):6} modules with one importer in the same folder (at most 40)")
    print(f"{words.total():6} words of a dialect (0): {', '.join(f'{word} {n}' for word, n in words.most_common())}")
    return 0


def tracked(*patterns: str) -> list[Path]:
    """The files that git knows, and that are there."""
    names = subprocess.check_output(("git", "ls-files", "-z", *patterns), cwd=ROOT, text=True).split("\0")
    return [ROOT / name for name in names if name and (ROOT / name).is_file()]


def circles(imports: dict[str, set[str]]) -> list[list[str]]:
    """One chain for each import that would have to go."""
    left = {name: set(others) for name, others in imports.items()}
    found: list[list[str]] = []
    while (chain := circle(left)) is not None:
        found.append(chain)
        left[chain[1]].discard(chain[0])
    return found


def circle(imports: dict[str, set[str]]) -> list[str] | None:
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        chain: list[str] = error.args[1]
        return chain
    return None


def one_importer(imports: dict[str, set[str]]) -> list[str]:
    """Modules that one neighbour alone uses."""
    users: dict[str, list[str]] = {}
    for name, others in imports.items():
        for other in others:
            users.setdefault(other, []).append(name)
    alone = {name: each[0] for name, each in users.items() if len(each) == 1}
    return sorted(name for name, user in alone.items() if is_module(name) and folder(user) == folder(name))


def is_module(name: str) -> bool:
    return not name.endswith("__main__") and not (ROOT / name.replace(".", "/") / "__init__.py").exists()


def folder(name: str) -> str:
    return name.rpartition(".")[0]


if __name__ == "__main__":
    sys.exit(main())
