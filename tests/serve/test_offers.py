"""What a client may add to the name of a recipe."""

from __future__ import annotations

import pytest

from foretell.engine.engine import Engine
from foretell.errors import RequestError
from foretell.serve.offers import MOST_SETTINGS, Offers


def test_the_number_of_settings_is_limited(tiny: Engine) -> None:
    offers = Offers.of((), tiny)
    offer, settings = offers.find("swift" + " transfer.value=0.5" * MOST_SETTINGS)
    assert (offer.name, settings) == ("swift", "transfer.value=0.5" + " transfer.value=0.5" * (MOST_SETTINGS - 1))
    with pytest.raises(RequestError, match="has 9 settings; at most 8 may be given"):
        offers.find("swift" + " transfer.value=0.5" * (MOST_SETTINGS + 1))
