"""The tables of the config file, with their defaults and limits, by topic."""
