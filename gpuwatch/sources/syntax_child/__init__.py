"""The syntax of source files that watched processes name, taken apart in a process of its own.

Such a file may hold anything. Up to Python 3.10 `ast.parse` crashes the interpreter for 256 KiB of `a+a+a+...`; for as
much of short statements it holds the GIL for 0.8 s and takes 250 MB; and the search for where a loader was built may
have no end. The child may do all that: it has limits, and what is lost with it is one answer.
"""
