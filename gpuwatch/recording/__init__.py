"""One SQLite file per session: every sample as it came, a summary of each minute, and the findings.

The layout is in `schema`. It was chosen among twelve by size, cost and what a kill leaves: a tail of one row per second
and sealed column chunks of a minute take 1.2 bytes a value, and no kill made a file unreadable.
"""
