"""Prefill and decode apart: the way of a request's state from one server to the other."""
