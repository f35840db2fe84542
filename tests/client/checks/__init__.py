"""The questions, by topic. They are asked in the order of this list: `refusing` ends with whether the server still lives."""

from . import looking  # noqa: I001
from . import generating
from . import stopping
from . import scoring
from . import interrupting
from . import pausing
from . import weights
from . import chatting
from . import refusing
from .asking import CAPTURED, CHECKS, A, Skip, get, ok

__all__ = ["CAPTURED", "CHECKS", "A", "Skip", "get", "ok", "looking", "generating", "stopping", "scoring", "interrupting", "pausing", "weights", "chatting", "refusing"]
