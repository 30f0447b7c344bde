"""Where a value comes from: from the name in a call back to the literal, the option's default or the config file."""
