"""What a simulated endpoint is made of: its system as data, the time of a step, the memory of a die."""
