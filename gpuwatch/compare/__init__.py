"""Before and after: two sides of measured runs, compared as far as they are alike.

`measured` reads a side from a recording's summary or a report's JSON, `comparison` compares metric by metric, `gates`
judges `--fail-if`, `document` is the result as JSON, text and Markdown, `wording` its figures in words.
"""
