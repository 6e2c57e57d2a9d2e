"""Other libraries are quiet inside the block only."""

from __future__ import annotations

import logging
import warnings

import pytest

from foretell.models.quiet import quiet_libraries


@pytest.mark.parametrize("before", [logging.NOTSET, logging.CRITICAL])
def test_messages_are_hidden_inside_the_block_only(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, before: int
) -> None:
    monkeypatch.setattr(logging.root.manager, "disable", before)
    logger = logging.getLogger("some.library")
    logger.addHandler(handler := logging.StreamHandler())
    try:
        with quiet_libraries():
            warnings.warn("hidden", stacklevel=1)  # an error in these tests, unless it is filtered
            logger.warning("hidden")
            logger.error("error")
        logger.warning("shown")
    finally:
        logger.removeHandler(handler)
    assert capsys.readouterr().err.split() == ([] if before else ["error", "shown"])
    assert logging.root.manager.disable == before
    with pytest.raises(UserWarning, match="shown"):
        warnings.warn("shown", stacklevel=1)
