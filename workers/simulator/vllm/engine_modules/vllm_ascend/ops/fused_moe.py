"""Routing and computing experts. The switches are changes to the source that field report B made; names assumed."""

FUSED_GATING = False  # gate, top-k and softmax of a layer in one launch
DYNAMIC_EXPERT_BATCHES = False  # an expert takes at most its capacity, what is over goes where room is
