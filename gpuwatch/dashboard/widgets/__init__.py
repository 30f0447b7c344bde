"""The widgets: thin, own Line-API painters of the panels' lines."""
