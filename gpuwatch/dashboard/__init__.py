"""The live view: Textual screens over the monitor's snapshots. Importing this package loads no Textual."""
