"""The monitor: wires sources, timeline and diagnosis, and hands snapshots to the views."""
