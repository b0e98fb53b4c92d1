"""An engine whose behaviour hangs on constants of its modules, served by the fake server."""
