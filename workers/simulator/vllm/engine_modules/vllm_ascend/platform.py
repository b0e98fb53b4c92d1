"""Graph capture, as the platform sets it up."""

CUDAGRAPH_NUM_OF_WARMUPS = 1  # runs of a shape before it is captured
