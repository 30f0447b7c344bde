"""The report as one HTML file: nothing is fetched, nothing but gpuwatch's own script may run."""
