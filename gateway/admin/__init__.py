"""What the operator's commands ask of a running gateway, over its control socket."""
