"""The live view: Textual screens over the monitor's snapshots. Importing this package loads no Textual.

A key is a row in `actions`. What the main screen shows is in `panels`, every other screen with its page in `screens`,
the player of recordings in `replay`. A number is written in `formatting`, a sentence in `words`, a colour and a sign
are in `themes`. `launch` starts it: `terminal` and `first_numbers` show what is known until Textual is imported,
`terminal` also ends it with its terminal, `driver` reads the keys.
"""
