"""How many cases the crash tests try: 1 as part of `make test`, more in `make crash`."""

import os

SCALE = int(os.environ.get("GATEHOUSE_CRASH_SCALE", "1"))
