"""The router before a deployment of prefill and decode servers."""
