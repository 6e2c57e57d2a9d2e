"""Pictures of decoding, with matplotlib (the extra `plots`)."""

from foretell.extras import require_extra

require_extra("plots")
