"""The front end of vLLM with vllm-ascend: command line and environment to an effective configuration."""
