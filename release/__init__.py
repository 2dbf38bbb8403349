"""Builds a release: wheel, sdist, Debian package, bill of materials, licences and checksums."""
