"""Before and after: two sides of measured runs, held against each other as far as they are alike."""
