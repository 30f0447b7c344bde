"""Recordings as other tools read them.

`samples` gives a stretch, its time axis and its lines of JSON; `tables` writes CSV and Parquet, `trace` a trace for
Perfetto.
"""
