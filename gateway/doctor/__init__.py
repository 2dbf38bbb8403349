"""Looking for what is wrong with an installation: each module looks at one thing, and says what would help."""
