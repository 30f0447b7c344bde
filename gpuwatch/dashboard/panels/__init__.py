"""What the screens show, as lines of styled text: pure functions of a view, a width and a look."""
