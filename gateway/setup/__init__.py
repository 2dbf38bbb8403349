"""Setting up an installation: what is chosen becomes keys of the configuration and private files beside it."""
