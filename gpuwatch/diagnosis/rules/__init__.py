"""The rules, one file each, by family: a file here is a rule, nothing else registers it."""
