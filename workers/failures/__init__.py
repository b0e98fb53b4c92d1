"""Why servers fail: a catalogue of signatures, and the rules that read it."""
