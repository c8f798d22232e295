"""Without a network, names on the hub are looked up among the models that are stored locally."""

import pytest
import ziplm


def test_without_a_network_an_unknown_name_fails_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr("ziplm.architectures.network._answers", lambda: asked.append(1))
    with pytest.raises(ziplm.BadCheckpoint, match="there is no folder some/model, and the hub gave no model"):
        ziplm.load("some/model")
    assert asked
