"""What the main screen shows, as lines of styled text: pure functions of a view, a width and a look."""
