"""The effective configuration: what an engine's start-up log says, and how it differs from the launch plan."""
