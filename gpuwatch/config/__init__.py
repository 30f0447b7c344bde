"""The user's settings: `[tool.gpuwatch]` of the nearest pyproject.toml, and the config file of the user."""
