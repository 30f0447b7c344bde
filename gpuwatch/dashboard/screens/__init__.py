"""The screens, each with its page, its keys and its widgets."""
