"""Who trains on this machine: found from outside, by what a training process leaves in /proc and on the GPUs."""
