"""Table files: saving, backups, damage, and RocketMQ's integer keys."""

import json
from pathlib import Path

import pytest
import structlog

from reput_broker.tables.config_file import ConfigFile, ConfigFileDamaged, EntryTexts, decode, encode


@pytest.fixture
def file(tmp_path: Path) -> ConfigFile:
    return ConfigFile(tmp_path / "config" / "table.json")


def test_a_missing_file_is_an_empty_table(file: ConfigFile) -> None:
    loaded = file.load()
    assert (loaded.members, loaded.data, loaded.path) == ({}, b"", None)


def test_saving_keeps_the_text_before_as_backup(file: ConfigFile) -> None:
    file.save(b'{"a":1}')
    assert not file.backup.exists()
    file.save(b'{"a":2}')
    assert file.backup.read_bytes() == b'{"a":1}'
    assert file.load().members == {"a": 2}
    assert not file.temporary.exists()


def test_a_missing_or_empty_file_falls_back_on_its_backup(file: ConfigFile) -> None:
    file.save(b'{"a":1}')
    file.save(b'{"a":2}')
    file.path.write_bytes(b"")
    assert file.load().members == {"a": 1}
    file.path.unlink()
    assert file.load().path == file.backup


def test_an_empty_file_does_not_push_out_a_good_backup(file: ConfigFile) -> None:
    file.save(b'{"a":1}')
    file.save(b'{"a":2}')
    file.path.write_bytes(b"")
    file.save(b'{"a":3}')
    assert file.backup.read_bytes() == b'{"a":1}'


def test_a_damaged_file_is_kept_and_the_backup_used(file: ConfigFile) -> None:
    file.save(b'{"a":1}')
    file.save(b'{"a":2}')
    file.path.write_bytes(b'{"a":')
    with structlog.testing.capture_logs() as logs:
        assert file.load().members == {"a": 1}
    assert logs[0]["event"] == "config_file_damaged"
    assert file.path.with_name("table.json.damaged-1").read_bytes() == b'{"a":'


@pytest.mark.parametrize("text", [b"{", b"[]", b"null", b"\xff\xfe"])
def test_damage_without_a_backup_refuses(file: ConfigFile, text: bytes) -> None:
    file.path.parent.mkdir()
    file.path.write_bytes(text)
    with pytest.raises(ConfigFileDamaged, match=r"table\.json cannot be read.*restore a good copy") as refused:
        file.load()
    assert refused.value.path == file.path
    assert file.path.read_bytes() == text


def test_a_damaged_backup_refuses(file: ConfigFile) -> None:
    file.path.parent.mkdir()
    file.backup.write_bytes(b"{")
    with pytest.raises(ConfigFileDamaged, match=r"table\.json\.bak"):
        file.load()


def test_integer_keys_without_quotes_are_read() -> None:
    text = '{"t@g":{0:100,1:7\n\t}, "x{1:":{ -2 : {3:4}}, "list":[1,2], "s":"{5:6, \\"7:"}'
    assert decode(text.encode()) == {
        "t@g": {"0": 100, "1": 7},
        "x{1:": {"-2": {"3": 4}},
        "list": [1, 2],
        "s": '{5:6, "7:',
    }


def test_written_tables_are_strict_json_with_tabs() -> None:
    text = encode({"dataVersion": {"counter": 0}, "topicConfigTable": {"T": {"attributes": {}}}})
    assert text == (
        b'{\n\t"dataVersion":{\n\t\t"counter":0\n\t},\n\t"topicConfigTable":{\n\t\t"T":{\n\t\t\t"attributes":{}\n\t\t}\n\t}\n}'
    )
    assert json.loads(text) == decode(text)


def test_a_table_encodes_the_entries_that_have_changed_and_its_text_is_the_same() -> None:
    texts, made = EntryTexts("table"), []

    def entry(value: dict[str, int], more: str) -> dict[str, object]:
        made.append(more)
        return {**value, "more": more, "none": {}}

    def members(entries: dict[str, tuple[object, ...]]) -> dict[str, object]:
        odd = {"table": {}, "text": '\n\t"table":{}'}
        return {"odd": odd, "table": {name: entry(*entries[name]) for name in sorted(entries)}, "z": 1}  # type: ignore[arg-type]

    entries: dict[str, tuple[object, ...]] = {}
    for name in ("b", 'a\n"quoted" \u00fc', "c"):
        entries[name] = ({"n": 1}, name)
        made.clear()
        text = texts.encode({**members({}), "table": {}}, entries, entry)
        assert made == [name]
        assert text == encode(members(entries))
    entries["b"] = ({"n": 2}, "b")
    del entries["c"]
    assert texts.encode({**members({}), "table": {}}, entries, entry) == encode(members(entries))
    assert texts.encode({**members({}), "table": {}}, {}, entry) == encode(members({}))
