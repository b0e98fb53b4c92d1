"""Constants of an engine's modules, set when a server imports them: nothing that is installed is changed."""
