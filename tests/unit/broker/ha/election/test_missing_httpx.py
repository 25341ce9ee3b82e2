"""An election without its library names the option and the extra to install."""

import sys
from pathlib import Path

import pytest

from reput_broker.config.errors import ConfigError
from reput_broker.config.model import BrokerConfig
from reput_broker.ha.election.elector import make_elector


def test_an_election_without_httpx_names_the_option_and_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("reput_broker.ha.election.")]:
        if name.rpartition(".")[2] in ("endpoints", "etcd"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "httpx", None)
    config = BrokerConfig(data_dir=tmp_path, election={"etcd": ["http://127.0.0.1:2379"]})
    with pytest.raises(ConfigError, match=r"election\.etcd: needs httpx.*extra `etcd`.*pip install httpx"):
        make_elector(config, "127.0.0.1:10911", "")
