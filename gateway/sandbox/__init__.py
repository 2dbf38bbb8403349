"""Running commands where they can reach nothing but their workspace: here, or in a service that may build sandboxes.

Nothing heavy is imported, so that the process of that service is small.
"""
