"""Collectives. The switch is a change to the source that field report B made; its name is assumed."""

OVERLAP_COLLECTIVES = False  # all-reduces run beside the computation that does not need their result
