"""The launch of GPU work by the CPU."""
