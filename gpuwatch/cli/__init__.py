"""The commands, one file each: its arguments (`add_arguments`), and its run in the function of its name."""
