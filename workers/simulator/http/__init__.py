"""The wall-clock form: a real server process."""
