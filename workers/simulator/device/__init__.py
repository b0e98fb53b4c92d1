"""Settings that the layers under an engine read themselves: HCCL and torch_npu, the same for every engine."""
