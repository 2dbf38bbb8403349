"""The tables of the settings, with their defaults and limits, by what they are about."""
