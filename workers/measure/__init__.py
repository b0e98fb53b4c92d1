"""`autotune measure`: any running endpoint, with the load process and the judgement of the tuner's own trials."""
