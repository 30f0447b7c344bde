"""Real trainings on the CPU with known troubles: what the diagnosis must name in them, hooked and attached."""
