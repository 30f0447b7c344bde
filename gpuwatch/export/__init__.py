"""Recordings as other tools read them: CSV, Parquet, JSON lines, and a trace for Perfetto."""
