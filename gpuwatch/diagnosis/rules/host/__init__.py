"""The machine under the run: its cores, memory and nodes."""
