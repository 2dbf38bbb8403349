"""The way in: messages are checked, committed to the spool and put into lanes."""
