"""The way of a batch to the GPU: copies and the link."""
