"""Captured stacks in the formats that people read and that other tools open."""
