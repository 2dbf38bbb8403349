"""Servers of the Model Context Protocol, whose tools the agents may use. The SDK is loaded when one is configured."""
