"""What gpuwatch says about real trainings on a real GPU, against what it has to say: `python -m benchmarks.gpu`."""
