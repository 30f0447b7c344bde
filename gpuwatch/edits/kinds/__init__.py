"""One file per kind of edit: from what a rule asks for to the changes of the text, or why there are none."""
