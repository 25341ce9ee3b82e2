"""Options from flags, environment and file: which one counts, and how texts are read."""

import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest

from broker_toml import broker_toml
from reput_broker.config.description import config_options, describe, digest
from reput_broker.config.environment import variable_of
from reput_broker.config.errors import ConfigError, ConfigProblem
from reput_broker.config.loading import load_config
from reput_broker.config.model import BrokerConfig
from reput_broker.config.options import flatten

CONF = Path(__file__).resolve().parents[4] / "conf"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "broker.toml"


def problems(file: Path | None, environ: Mapping[str, str] | None = None) -> dict[str, ConfigProblem]:
    with pytest.raises(ConfigError) as refused:
        load_config(file, environ)
    return {problem.key: problem for problem in refused.value.problems}


def test_flag_beats_environment_beats_file_beats_default(file: Path) -> None:
    file.write_text('port = 1\n[store]\nflush = "async"\nflush_interval = "1s"\nsync_timeout = "1s"\n')
    config = load_config(
        file,
        {"REPUT_STORE__FLUSH_INTERVAL": "2s", "REPUT_STORE__SYNC_TIMEOUT": "2s", "HOME": "/root"},
        {"store.sync_timeout": "3s", "data_dir": None, "http_port": "off"},
    )
    assert (config.port, config.store.flush) == (1, "async")
    assert config.store.flush_interval == 2.0
    assert config.store.sync_timeout == 3.0
    assert config.http_port == "off"
    assert config.path == file
    sources = {row.key: row.source for row in describe(config)}
    assert sources["port"] == str(file)
    assert sources["store.flush_interval"] == "REPUT_STORE__FLUSH_INTERVAL"
    assert sources["store.sync_timeout"] == "--store-sync-timeout"
    assert sources["data_dir"] == "default"


def test_environment_values_are_read_as_their_options_need() -> None:
    config = load_config(
        None,
        {
            "REPUT_PORT": "0",
            "REPUT_HTTP_PORT": "0",
            "REPUT_NAME_PORT": "off",
            "REPUT_TOPICS__AUTO_CREATE": "false",
            "REPUT_STORE__COMMIT_LOG_FILE_SIZE": "16MiB",
            "REPUT_DATA_DIR": "/srv/reput",
        },
    )
    assert (config.port, config.http_port, config.name_port) == (0, 0, "off")
    assert config.topics.auto_create is False
    assert config.store.commit_log_file_size == 16 << 20
    assert config.data_dir == Path("/srv/reput")


def test_directories_are_a_list_or_a_text_with_commas(file: Path) -> None:
    """RocketMQ writes storePathCommitLog with commas."""
    file.write_text('[store]\ncommit_log_dirs = ["/a/log", "/b, c/log", "/a/log"]\n')
    assert load_config(file).store.commit_log_dirs == (Path("/a/log"), Path("/b, c/log"))
    file.write_text('[store]\ncommit_log_dirs = "/a/log, /b/log"\n')
    config = load_config(file, {"REPUT_STORE__READ_ONLY_COMMIT_LOG_DIRS": "/a/log,/z/log"})
    assert config.store.commit_log_dirs == (Path("/a/log"), Path("/b/log"))
    assert config.store.read_only_commit_log_dirs == (Path("/a/log"), Path("/z/log"))
    values = {row.key: row.value for row in describe(config)}
    assert values["store.commit_log_dirs"] == '["/a/log", "/b/log"]'
    assert BrokerConfig(store={"commit_log_dirs": ""}).store.commit_log_dirs == ()


def test_lists_of_the_environment_are_written_as_in_a_file_too() -> None:
    """The Helm chart writes them so; the first directory was then called `["/a/log"`."""
    config = load_config(
        None,
        {
            "REPUT_STORE__COMMIT_LOG_DIRS": '["/a/log","/b, c/log"]',
            "REPUT_HTTP_ALLOWED_HOSTS": '["metrics.example.com"]',
            "REPUT_PROXY_PROTOCOL_FROM": "[]",
            "REPUT_NAME_SERVERS": "[::1]:9876",
        },
    )
    assert config.store.commit_log_dirs == (Path("/a/log"), Path("/b, c/log"))
    assert config.http_allowed_hosts == ("metrics.example.com",)
    assert config.proxy_protocol_from == ()
    assert config.name_servers == ("[::1]:9876",), "a text that begins with a bracket"
    assert set(problems(None, {"REPUT_NAME_SERVERS": '["names1"]'})) == {"name_servers"}


@pytest.mark.parametrize("text", ["3", '["/a", 3]', '["/a", ""]', '"/a,,/b"'])
def test_invalid_lists_of_directories(file: Path, text: str) -> None:
    file.write_text(f"[store]\ncommit_log_dirs = {text}\n")
    assert set(problems(file)) == {"store.commit_log_dirs"}


def test_new_files_of_the_log_must_go_somewhere(file: Path) -> None:
    file.write_text('[store]\ncommit_log_dirs = "/a,/b"\nread_only_commit_log_dirs = "/b,/a"\n')
    assert "none is left for new files" in problems(file)["store.read_only_commit_log_dirs"].problem


def test_a_pool_must_fit_into_the_memory(file: Path) -> None:
    file.write_text("[store]\ntransient_store_pool = true\ntransient_store_pool_size = 1024\n")
    assert "bytes of memory" in problems(file)["store.transient_store_pool"].problem
    file.write_text("[store]\ntransient_store_pool_size = 1024\n")
    assert not load_config(file).store.transient_store_pool, "what is not on takes none"


def test_a_value_can_come_from_a_file(tmp_path: Path) -> None:
    secret = tmp_path / "advertise"
    secret.write_text("broker.example:10911\n")
    config = load_config(None, {"REPUT_ADVERTISE_FILE": str(secret)})
    assert config.advertise == "broker.example:10911"
    assert config.origins["advertise"] == "REPUT_ADVERTISE_FILE"
    found = problems(None, {"REPUT_ADVERTISE_FILE": str(tmp_path / "gone")})
    assert "cannot be read: No such file" in found["advertise"].problem
    found = problems(None, {"REPUT_ADVERTISE_FILE": str(secret), "REPUT_ADVERTISE": "a:1"})
    assert "set twice" in found["advertise"].problem


def test_a_secret_in_a_file_is_named_by_its_variable(file: Path, tmp_path: Path) -> None:
    kept = tmp_path / "admin.secret"
    kept.write_text("0123456789abcdef\n")
    file.write_text(f'[access]\nadmin_secret_file = "{kept}"\nbroker_secret = "{kept}"\nbroker_user_file = "x"\n')
    found = problems(file)
    assert str(found["access.admin_secret_file"]) == (
        "access.admin_secret_file: unknown key; the environment variable REPUT_ACCESS__ADMIN_SECRET_FILE names the "
        f"file with access.admin_secret (from {file})"
    )
    assert str(found["access.broker_secret"]) == (
        "access.broker_secret: its value is the name of a file; the environment variable "
        f"REPUT_ACCESS__BROKER_SECRET_FILE names the file with access.broker_secret (from {file})"
    )
    assert found["access.broker_user_file"].nearest == "access.broker_user", "no secret"
    file.write_text("")
    config = load_config(file, {"REPUT_ACCESS__ADMIN_SECRET_FILE": str(kept)})
    assert config.access.admin_secret == "0123456789abcdef"


def test_every_source_reports_its_mistakes_at_once(file: Path) -> None:
    file.write_text('prot = 1\n[store]\nflush_interval = 5\nmessage_size_max = 4096\n[limits]\nconnections = "many"\n')
    found = problems(file, {"REPUT_STORE__FLUSSH": "sync", "REPUT_TOPICS__AUTO_CREATE": "perhaps"})
    assert set(found) == {
        "prot",
        "store.flush_interval",
        "store.message_size_max",
        "limits.connections",
        "REPUT_STORE__FLUSSH",
        "topics.auto_create",
    }
    assert found["prot"].nearest == "port"
    assert found["prot"].origin == str(file)
    assert found["store.message_size_max"].problem.startswith("the unit is missing")
    assert found["REPUT_STORE__FLUSSH"].nearest == "REPUT_STORE__FLUSH"
    assert found["topics.auto_create"].origin == "REPUT_TOPICS__AUTO_CREATE"
    assert found["topics.auto_create"].problem == "true or false is needed, not 'perhaps'"


def test_variables_of_others_are_left_alone() -> None:
    config = load_config(
        None,
        {
            "REPUT_SERVER": "other:10911",
            "REPUT_PORT": "tcp://10.0.0.7:10911",  # Kubernetes, for a service named reput
            "REPUT_PORT_10911_TCP_ADDR": "10.0.0.7",
            "REPUT_SERVICE_HOST": "10.0.0.7",
            "REPUT_SERVICE_PORT_METRICS": "10913",
            "REPUTATION": "good",
        },
    )
    assert config.port == 10911
    assert config.origins == {}


@pytest.mark.parametrize(
    ("content", "complaint"), [(None, "no such file"), (b"port = = 1", "is not TOML"), (b"\xff", "is not TOML")]
)
def test_a_file_that_cannot_be_read(file: Path, content: bytes | None, complaint: str) -> None:
    if content is not None:
        file.write_bytes(content)
    found = problems(file)
    assert complaint in found[""].problem
    assert found[""].origin == str(file)


def test_the_shipped_file_is_made_from_the_options() -> None:
    shipped = CONF / "broker.toml"
    assert shipped.read_text(encoding="utf-8") == broker_toml(), "make format writes it"
    assert load_config(shipped).model_dump() == BrokerConfig().model_dump()
    assert list(flatten(tomllib.loads(shipped.read_text()))) == [row.key for row in describe(BrokerConfig())]
    assert "# [live] With flush = async, how often" in shipped.read_text()


def test_the_image_s_file_is_valid() -> None:
    config = load_config(CONF / "container.toml")
    assert (config.host, config.http_host, config.allow_insecure) == ("0.0.0.0", "0.0.0.0", False)
    assert config.access.enabled
    assert config.access.generate_admin


def test_every_option_is_described() -> None:
    rows = {row.key: row for row in describe(BrokerConfig())}
    assert all(row.description for row in rows.values())
    assert rows["store.flush_interval"].value == '"500ms"'
    assert rows["store.flush_interval"].unit == "duration"
    assert rows["limits.frame_size"].value == '"16MiB"'
    assert rows["topics.auto_create"].live
    assert not rows["data_dir"].live
    assert variable_of("store.flush_interval") == "REPUT_STORE__FLUSH_INTERVAL"


def test_the_digest_tells_configurations_apart(file: Path) -> None:
    file.write_text("port = 10911\n")
    assert digest(load_config(file)) == digest(BrokerConfig())
    assert digest(BrokerConfig(port=1)) != digest(BrokerConfig())


def test_a_url_is_shown_without_its_password_and_key() -> None:
    endpoint = "http://alice:hidden-one@collector:4318/v1/traces?key=hidden-two"
    config = BrokerConfig(tracing={"endpoint": endpoint})
    assert config.tracing.endpoint == endpoint
    (row,) = [row for row in describe(config) if row.key == "tracing.endpoint"]
    (option,) = [option for option in config_options(config) if option.key == "tracing.endpoint"]
    assert row.value == '"http://***@collector:4318/v1/traces?***"'
    assert "hidden" not in f"{row} {option}"
    with pytest.raises(ConfigError) as refused:
        BrokerConfig(tracing={"endpoint": "http://alice:hidden-one@collector:4318"})
    assert "hidden" not in str(refused.value)
