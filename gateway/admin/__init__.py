"""The control socket: its routes in the daemon, and the client that the operator's commands use."""
