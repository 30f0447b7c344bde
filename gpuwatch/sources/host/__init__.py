"""The host: CPU, memory, pressure, cgroups, and the processes and DataLoader workers of runs."""
