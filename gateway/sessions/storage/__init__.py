"""Session files on disk: transcripts, the index, and their flushes."""
