"""The virtual form: the same engine on virtual time."""
