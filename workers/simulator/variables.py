"""Settings of the simulation itself. They stand in a template's `env`, never in a search space."""

SEED = "AUTOTUNE_SIM_SEED"  # any text; the same text gives the same launch again
HOST = "AUTOTUNE_SIM_HOST"  # name of the host that the server pretends to be on
NOISE = "AUTOTUNE_SIM_NOISE"  # `off`: every step takes its mean
START_S = "AUTOTUNE_SIM_START_S"  # seconds that a whole start really takes
FAULT_RATE = "AUTOTUNE_SIM_FAULT_RATE"  # chance of a random fault per launch, 0 to 1
FAULT = "AUTOTUNE_SIM_FAULT"  # one fault by its name, in every launch

ATTEMPT = "AUTOTUNE_ATTEMPT"  # set by the worker: tells launches of one template apart
VISIBLE_DEVICES = "ASCEND_RT_VISIBLE_DEVICES"
