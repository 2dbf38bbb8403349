"""The one way out to addresses that somebody else has named: the public web, and nothing of ours."""
