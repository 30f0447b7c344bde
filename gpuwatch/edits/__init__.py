"""Edits: a fix as a change of the user's own file. Files are read, never written."""
