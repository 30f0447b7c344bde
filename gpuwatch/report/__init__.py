"""The report: one JSON document, and the renderers that show nothing but it.

* What it is: `model`, from which the JSON, its schema and `gpuwatch compare` come.
* What it is made of: `observation` (a session, frozen at its end), `recorded` (the same from a recording).
* Making it: `build`, with its larger parts in `runs`, `findings` and `verdict`.
* Showing it: `words` (sentences and tables for all), then `text`, `markdown`, `junit` and `html`.
* `profiles` writes captured stacks, which are no part of the report.
"""
