"""Before and after: two sides of measured runs, compared as far as they are alike."""
