"""The channels that come with Gatehouse; each is found through its entry point, as a third party's is."""
