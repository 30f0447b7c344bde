"""The timeline: one bounded history of everything, and the windows that are cut from it."""
