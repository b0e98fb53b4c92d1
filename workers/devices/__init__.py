"""The devices of this host: how many there are, in which state, and what of their memory is in use."""
