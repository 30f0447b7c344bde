"""Heat, power limits and the clocks they take away."""
