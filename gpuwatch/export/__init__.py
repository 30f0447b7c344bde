"""Recordings as other tools read them.

`samples` gives a stretch and its time axis; `tables` writes CSV and Parquet, `jsonl` lines of JSON, `trace` a trace for
Perfetto.
"""
