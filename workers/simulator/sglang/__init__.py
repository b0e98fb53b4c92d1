"""SGLang 0.5.23: its command line, its rules, its words."""
