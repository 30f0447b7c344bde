"""Who else uses the GPU, and how far the measurement itself can be trusted."""
