"""Fetching the next weights while the present layer computes."""

MOE_PREFETCH_TOKEN_THRESHOLD = 96  # tokens a step from which expert weights are fetched ahead
