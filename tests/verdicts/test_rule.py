"""The rule's version: manifests name it, and no constant changes without it."""

import pytest

from benchmark.verdicts import rule
from benchmark.verdicts.registered import EARLIER_CONSTANTS
from benchmark.verdicts.rule import RULE_VERSION, constants

CONSTANTS = {
    **dict.fromkeys((4, 5, 6), "8c4ef2ae8a88238a"),
    7: "31db423e73ec5fb1",
}  # version -> hash; with another constant goes another version


def test_another_constant_is_another_version():
    assert rule.rule() == {"version": RULE_VERSION, "constants": CONSTANTS[RULE_VERSION]}
    assert {**EARLIER_CONSTANTS, RULE_VERSION: rule.rule()["constants"]} == CONSTANTS


def test_each_constant_is_in_the_hash_and_the_version_is_not(monkeypatch: pytest.MonkeyPatch):
    before = rule.rule()["constants"]
    monkeypatch.setattr(rule, "RULE_VERSION", 99)
    assert rule.rule() == {"version": 99, "constants": before}
    for name in constants():
        with monkeypatch.context() as patch:
            patch.setattr(rule, name, 7)
            assert rule.rule()["constants"] != before, name
