"""The diagnosis: pure functions from a scene to findings. It knows no clock, file, socket or screen."""
