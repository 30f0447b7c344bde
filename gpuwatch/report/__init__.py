"""The report: one JSON document, and the renderers that show nothing but it.

* What it is: `model`, from which the JSON, its schema and `gpuwatch compare` come.
* What it is made of: `observation` (a session, frozen at its end), `recorded` (the same from a recording).
* Making it: `build`, with the findings in `findings`.
* Showing it: `words` (sentences and tables for all), then `text` (plain and Markdown), `junit` and `html`, whose page
  is made of the files in `page/`.
"""
