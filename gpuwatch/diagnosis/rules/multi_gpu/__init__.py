"""Several GPUs and ranks in one job."""
