"""The commands: each file parses nothing but wires, prints and returns an exit code."""
