"""The rules: a file here is a rule, named after its id; nothing else registers it."""
