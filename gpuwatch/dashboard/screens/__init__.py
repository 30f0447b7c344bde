"""The screens: each asks its panels for lines and hands them to widgets."""
