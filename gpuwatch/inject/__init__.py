"""Installs the hook in a running process, asked for by name only: Python 3.14 and later offer it (PEP 768)."""
