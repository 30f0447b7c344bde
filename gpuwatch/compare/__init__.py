"""Before and after: two sides of measured runs, compared as far as they are alike.

`comparison` reads both sides, compares metric by metric and judges `--fail-if`; `document` is the result as JSON, text
and Markdown.
"""
