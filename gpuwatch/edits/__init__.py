"""Edits: a fix as a change of the user's own file. Files are read, never written.

* `editor` asks a child process, in which `diff` makes each edit.
* Kinds of edits: `kinds` (keywords of calls; statements: compile, autocast, setup), `intervals` (log, save less often).
* A value that is a name is followed to where it is written, into config files too: `follow`.
* `workspace` holds the files, as text and syntax tree; `source` reads them.
"""
