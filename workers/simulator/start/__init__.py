"""A start from accepted configuration to ready, and every way in which it fails."""
