"""One run: when things happen, not what they compute. Called, it is `shoal.api.train`."""

import sys

from shoal import Room

sys.modules[__name__].__class__ = Room
