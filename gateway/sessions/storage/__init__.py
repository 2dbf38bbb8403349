"""Session files on disk: transcripts are written, flushed, read, searched, repaired and verified."""
