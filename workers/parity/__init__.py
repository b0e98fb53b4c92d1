"""`autotune parity`: the same load by another load generator, and the differences by its definitions."""
