"""The data pipeline: what keeps batches from being ready."""
