"""A/B proof of a change: the same training with and without it, run alternately, and what the difference is worth.

`changes` is what an arm changes and its command line, `runner` makes a run and gives its speed (`process_guard` ends
it), `experiment` orders the runs, `results` says what the rules promised and what came of it, `render` gives it to the
user.
"""
