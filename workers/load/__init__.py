"""The load generator: a process of its own that keeps streams busy and records when each byte arrived."""
