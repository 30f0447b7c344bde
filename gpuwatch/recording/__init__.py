"""One SQLite file per session: every sample as it came, a summary of each minute, and the findings.

The layout is in `schema`. It was chosen among twelve by size, cost and what a kill leaves: a tail of one row per second
and sealed column chunks of a minute take 1.2 bytes a value, and no kill made a file unreadable.

* Samples as bytes: `columns` (fields as columns, and one column of values), `chunks` (a segment).
* Figures of minutes: `minutes` derives them from samples, `rollups` stores and joins minutes and hours.
* Writing: `writer`. Reading: `reader`, `stretch` (what a stretch comes to). `file` opens the file for both.
"""
