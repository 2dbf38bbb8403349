"""Pictures and recordings, made by endpoints that speak OpenAI's API."""
