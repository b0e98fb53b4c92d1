"""A simulated Ascend 910C endpoint: vLLM's command line, HTTP surface, log lines and faults, timed by a cost model."""
