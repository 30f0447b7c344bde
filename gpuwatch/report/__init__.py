"""The report: one JSON document, and the renderers that show nothing but it."""
