"""`HParams`."""

import pytest

from generic_trainer.errors import ConfigurationError
from generic_trainer.trials.experiment import HParams


def make():
    return HParams(rate=0.1, units=64, layers=[8, 4], name="adam", fine=False, note=None)


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("rate=1", "rate", 1.0),
        ("rate=1e-3", "rate", 1e-3),
        ("layers=[1,2,3]", "layers", [1, 2, 3]),
        ("layers=[]", "layers", []),
        ("layers=7", "layers", [7]),
        ("layers[1]=9", "layers", [8, 9]),
        ("layers[0]=1, layers[ 1 ]=2", "layers", [1, 2]),
        ("name=sgd", "name", "sgd"),
        ("name=3.10", "name", "3.10"),
        ("fine=true", "fine", True),
        ("fine=0", "fine", False),
        (" units = 3 , rate=0.2", "rate", 0.2),
    ],
)
def test_parse_keeps_the_types(text, name, value):
    found = getattr(make().parse(text), name)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("speed=1", "unknown hyperparameter 'speed'"),
        ("units=0.5", "units is a int"),
        ("units=true", "units is a int"),
        ("rate=fast", "rate is a float"),
        ("fine=maybe", "fine is a bool"),
        ("layers=[1,2", "expected name=value"),
        ("layers[2]=1", r"layers\[2\] is none of the values of layers: \[8, 4\]"),
        ("layers[1]=x", "layers is a int"),
        ("units[0]=1", r"units\[0\] is none"),
    ],
)
def test_what_does_not_fit_changes_nothing(text, message):
    hparams = make()
    with pytest.raises(ConfigurationError, match=message):
        hparams.parse(f"rate=0.9,{text}")
    assert hparams.values() == make().values()


def test_all_problems_are_told_at_once():
    with pytest.raises(ConfigurationError, match="2 problems"):
        make().parse("speed=1,units=x")


def test_values_and_membership():
    hparams = HParams(a=1)
    hparams.add_hparam("b", "x")
    hparams.set_hparam("a", 2)
    assert hparams.values() == {"a": 2, "b": "x"}
    assert "a" in hparams
    assert hparams.get("c", 5) == 5
    hparams.del_hparam("b")
    assert "b" not in hparams
    assert hparams.to_json() == '{"a": 2}'
    assert hparams.parse_json('{"a": 3}').a == 3
    assert repr(hparams) == "HParams(a=3)"


@pytest.mark.parametrize("name", ["a", "parse", "values"])
def test_a_name_that_is_taken(name):
    with pytest.raises(ConfigurationError, match="is taken"):
        HParams(a=1).add_hparam(name, 2)
