"""The engine without a clock: scheduler, KV cache, randomness."""
