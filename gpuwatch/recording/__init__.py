"""One SQLite file per session: every sample as it came, a summary of each minute, and the findings.

The layout is in `schema`. It was chosen among twelve by size, cost and what a kill leaves: a tail of one row per second
and sealed column chunks of a minute take 1.2 bytes a value, and no kill made a file unreadable.

* Samples as bytes: `columns` (one column of values), `shapes` (nested fields as columns), `chunks` (a segment).
* Figures of minutes: `minutes` derives them from samples, `tiers` stores minutes and hours, `pooled` joins them again.
* Writing: `writer`, `events` (facts and findings), `store` (the file, its place, its log).
* Reading: `opening` (is it a recording, and harmless), `reader`, `summary` (what a stretch comes to).
"""
