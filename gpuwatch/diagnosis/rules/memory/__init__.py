"""GPU memory: what is free, what is nearly full, and the allocator's troubles."""
