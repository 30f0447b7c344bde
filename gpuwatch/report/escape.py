"""The escapes where the report's own rooms look for them."""

from __future__ import annotations

from gpuwatch.text.escape import ascii_only, code_block, code_span, encodable, markdown, printable

__all__ = ["ascii_only", "code_block", "code_span", "encodable", "markdown", "printable"]
