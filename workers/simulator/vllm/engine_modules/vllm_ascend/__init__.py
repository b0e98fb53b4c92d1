"""Constants that the simulated engine reads from modules of the real one's names.

The parent folder is put on `sys.path` of a server's own process, so that the worker's import hook sets them there as
it does in the real engine.
"""
