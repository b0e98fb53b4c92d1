"""The constants."""

TOKEN_THRESHOLD = 96
SIZES = (1, 2, 4)
DOUBLED = TOKEN_THRESHOLD * 2  # computed while this module is imported


def threshold() -> int:
    return TOKEN_THRESHOLD
