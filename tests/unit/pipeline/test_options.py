"""Options of the source: every one is read and checked, and none is ignored."""

from __future__ import annotations

import re

import pytest

from reput_client import TLS
from reput_client.arrow.queues import QueueKey
from reput_pipeline.data_source import options_in_force, with_options_kept
from reput_pipeline.sink.options import parse_sink_options
from reput_pipeline.source.bounds import EARLIEST, GROUP, LATEST
from reput_pipeline.source.options import parse_source_options
from reput_pipeline.spark.option_reader import OptionError
from reput_protocol.names import SYSTEM_TOPICS
from support.pipeline_jobs import spark_schema_of

LIVE = {"nameServer": "127.0.0.1:10911", "subscribe": "t"}


def test_names_are_taken_in_any_case_and_lists_without_blanks() -> None:
    options = parse_source_options({"NAMESERVER": "a:1", "SubScribe": " x, y,x "}, streaming=False)
    assert (options.name_servers, options.topics) == ("a:1", ("x", "y"))
    assert options.start.word == EARLIEST
    assert parse_source_options(LIVE, streaming=True).start.word == LATEST


def test_defaults_are_those_of_the_page() -> None:
    options = parse_source_options(LIVE, streaming=True)
    assert (options.pull_timeout_s, options.fetch_retries, options.fetch_retry_interval_s) == (120.0, 3, 0.01)
    assert (options.max_trigger_delay_s, options.fail_on_data_loss, options.columns) == (900.0, True, "native")
    assert options.tag_filter.matches_all


def test_offsets_by_queue_with_and_without_the_broker() -> None:
    text = '{"t":{"0":23,"1":-2},"u":{"broker-a":{"3":7}}}'
    start = parse_source_options({**LIVE, "startingOffsets": text}, streaming=True).start
    assert start.offset_of(QueueKey("t", "any", 0)) == 23
    assert start.offset_of(QueueKey("t", "any", 1)) == EARLIEST
    assert start.offset_of(QueueKey("u", "broker-a", 3)) == 7
    assert start.offset_of(QueueKey("u", "broker-b", 3)) == EARLIEST


def test_the_more_exact_place_counts() -> None:
    given = {**LIVE, "startingOffsets": '{"t":{"0":5}}', "startingOffsetsByTimestamp": '{"t":{"0":1000}}'}
    start = parse_source_options(given, streaming=True).start
    assert start.timestamp_of(QueueKey("t", "b", 0)) == 1000
    assert start.timestamp_of(QueueKey("t", "b", 1)) is None
    start = parse_source_options({**given, "startingTimestamp": "7"}, streaming=True).start
    assert start.timestamp_of(QueueKey("t", "b", 0)) == 7


def test_a_group_to_start_from_has_to_be_named() -> None:
    options = parse_source_options({**LIVE, "groupId": "g", "startingOffsets": "group"}, streaming=True)
    assert options.start.word == GROUP


def test_how_to_encrypt_is_the_same_for_source_and_sink() -> None:
    for given, tls in (
        ({}, None),
        ({"tls": "true"}, TLS()),
        ({"tlsCa": "ca.pem", "tlsServerName": "b"}, TLS(ca="ca.pem", server_name="b")),
        ({"tlsCert": "c.pem", "tlsKey": "k.pem"}, TLS(cert="c.pem", key="k.pem")),
    ):
        assert parse_source_options({**LIVE, **given}, streaming=False).tls == tls
        assert parse_sink_options({"nameServer": "a:1", "topic": "t", **given}, streaming=False).tls == tls


@pytest.mark.parametrize(
    ("text", "seconds"), [("500ms", 0.5), ("30s", 30), ("15m", 900), ("2 hours", 7200), ("1500", 1.5)]
)
def test_delays_are_read_as_spark_writes_them(text: str, seconds: float) -> None:
    given = {**LIVE, "minOffsetsPerTrigger": "5", "maxTriggerDelay": text}
    assert parse_source_options(given, streaming=True).max_trigger_delay_s == seconds


REFUSED: list[tuple[dict[str, str], bool, str]] = [
    ({"subscribe": "t"}, False, "option nameServer: is missing"),
    ({**LIVE, "path": "/x"}, False, "option path: contradicts nameServer"),
    ({"nameServer": "a:1"}, False, "option subscribe: is missing"),
    ({**LIVE, "subscribePattern": "x"}, False, "option subscribePattern: contradicts subscribe"),
    ({**LIVE, "subscribe": " , "}, False, "names no topic"),
    ({"nameServer": "a:1", "subscribePattern": "("}, False, "not a regular expression"),
    ({"nameServer": "a:1", "assign": '{"t":0}'}, False, "no list of queue ids"),
    ({"nameServer": "a:1", "assign": '{"t":[0,0]}'}, False, "names a queue twice"),
    ({"nameServer": "http://a:1", "subscribe": "t"}, False, "is a URL"),
    ({**LIVE, "maxOffsetsPerTriger": "5"}, True, "did you mean maxOffsetsPerTrigger?"),
    ({**LIVE, "groupID2": "5"}, True, "did you mean groupId?"),
    ({**LIVE, "semantics": "exactly-once"}, False, "it is one of the sink"),
    ({**LIVE, "includeSystemTopics": "true"}, False, "needs subscribePattern"),
    ({}, False, "Spark does not pass a table's options to the source if CREATE TABLE declares columns"),
    ({**LIVE, "startingOffsets": "latest"}, False, "is 'latest'; it is earliest or group"),
    ({**LIVE, "startingOffsets": '{"t":{"0":-1}}'}, False, "-1 (latest) has no meaning here"),
    ({**LIVE, "endingOffsets": "earliest"}, False, "is 'earliest'; it is latest"),
    ({**LIVE, "endingOffsets": '{"t":{"0":-2}}'}, False, "-2 (earliest) has no meaning here"),
    ({**LIVE, "startingOffsets": '{"t":{"0":-3}}'}, True, "-3 is not an offset"),
    ({**LIVE, "startingOffsets": '{"t":{"0":true}}'}, True, "True is not an integer"),
    ({**LIVE, "startingOffsets": "group"}, True, "there is no groupId"),
    ({**LIVE, "endingOffsets": "latest"}, True, "a stream has no end"),
    ({**LIVE, "minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "5"}, True, "more than maxOffsetsPerTrigger"),
    ({**LIVE, "maxTriggerDelay": "5m"}, True, "needs minOffsetsPerTrigger"),
    ({**LIVE, "minOffsetsPerTrigger": "5", "maxTriggerDelay": "soon"}, True, "it is a time such as"),
    ({**LIVE, "startingOffsetsByTimestampStrategy": "latest"}, True, "needs startingTimestamp"),
    ({**LIVE, "includeHeaders": "true"}, True, "needs columns=kafka"),
    ({**LIVE, "columns": "avro"}, True, "it is one of native, kafka"),
    ({**LIVE, "select": "topic,valeu"}, True, "there is no column 'valeu'"),
    ({**LIVE, "minPartitions": "0"}, True, "an integer of at least 1"),
    ({**LIVE, "failOnDataLoss": "maybe"}, True, "it is one of true, false"),
    ({**LIVE, "subExpression": "||"}, True, "names no tag"),
    ({**LIVE, "groupId": ""}, True, "is empty"),
    ({"path": "/x", "subscribe": "t", "pullTimeoutMs": "5"}, False, "needs nameServer"),
    ({"path": "/x", "subscribe": "t", "tlsCa": "ca.pem"}, False, "needs nameServer"),
    ({**LIVE, "tlsKey": "k.pem"}, False, "the key of tlsCert"),
    ({**LIVE, "tls": "false", "tlsCa": "ca.pem"}, False, "contradicts tls=false"),
    ({"path": "/x", "subscribe": "t"}, True, "a stream needs nameServer"),
]


@pytest.mark.parametrize(("given", "streaming", "words"), REFUSED)
def test_what_cannot_be_is_refused_by_name(given: dict[str, str], streaming: bool, words: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse_source_options(given, streaming=streaming)
    assert words in str(caught.value)


def test_limits_of_streams_have_no_effect_in_a_batch_and_are_named() -> None:
    with pytest.warns(UserWarning, match="maxOffsetsPerTrigger has no effect"):
        parse_source_options({**LIVE, "maxOffsetsPerTrigger": "5"}, streaming=False)


def of_table(options: dict[str, str], **properties: str) -> dict[str, str]:
    """The options of `CREATE TABLE ... USING reput OPTIONS (...)` as Spark 4 hands them to the source."""
    copies = {f"option.{name}".lower(): value for name, value in options.items()}
    plain = {name.lower(): value for name, value in options.items()}
    return {**plain, **copies, "owner": "me", "provider": "reput", **properties}


SPARKS = {"queryName": "copies", "checkpointLocation": "/c", "path": "/p", "asyncProgressTrackingEnabled": "false"}


def test_options_that_spark_adds_are_ignored(recwarn: pytest.WarningsRecorder) -> None:
    sink = parse_sink_options({"nameServer": "a:1", "topic": "t", **SPARKS}, streaming=True)
    assert (sink.name_servers, sink.topic) == ("a:1", "t")
    source = parse_source_options({**LIVE, "queryName": "q", "checkpointLocation": "/c"}, streaming=True)
    assert source.topics == ("t",)
    assert not recwarn


def test_an_unknown_option_has_no_effect_and_is_named() -> None:
    for parse in (parse_source_options, parse_sink_options):
        given = {**LIVE, "color": "red"} if parse is parse_source_options else {"nameServer": "a:1", "color": "red"}
        with pytest.warns(UserWarning, match="option color is not one of the"):
            parse(given, streaming=True)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"topics": "t"}, "the sink has no such option; did you mean topic?"),
        ({"subscribe": "t"}, "the sink has no such option, it is one of the source"),
        ({"kafka.bootstrap.servers": "b:2"}, "the sink has no such option; did you mean nameServer?"),
    ],
)
def test_a_mistyped_option_of_the_sink_is_named(given: dict[str, str], words: str) -> None:
    with pytest.raises(OptionError, match=re.escape(words)):
        parse_sink_options({"nameServer": "a:1", **given}, streaming=True)


def test_the_address_option_of_kafka_hints_at_ours() -> None:
    for options in ({"kafka.bootstrap.servers": "b:2", "subscribe": "t"}, {**LIVE, "Kafka.Bootstrap.Servers": "b:2"}):
        with pytest.raises(OptionError, match=r"kafka\.bootstrap\.servers: .* did you mean nameServer\?"):
            parse_source_options(options)


def test_a_sink_refuses_a_directory() -> None:
    with pytest.raises(OptionError, match="the sink writes to a broker, not into a directory"):
        parse_sink_options({"path": "/var/lib/reput"}, streaming=False)


def test_a_table_hands_over_its_properties_and_second_copies(recwarn: pytest.WarningsRecorder) -> None:
    options = parse_source_options(of_table({**LIVE, "topic": "u"}, comment="x", select="topic"))
    assert (options.name_servers, options.topics, options.select) == ("127.0.0.1:10911", ("t",), ("topic",))
    sink = parse_sink_options(of_table({**LIVE, "topic": "u"}, comment="x"), streaming=False)
    assert (sink.name_servers, sink.topic) == ("127.0.0.1:10911", "u")
    of_directory = {"path": "file:/d", "location": "file:/d", "option.subscribe": "t", "provider": "reput"}
    assert parse_source_options(of_directory).path == "file:/d"
    assert not recwarn
    with pytest.raises(OptionError, match="did you mean subscribe"):
        parse_source_options(of_table({**LIVE, "subscrib": "u"}))


def test_a_table_keeps_its_options_in_its_columns() -> None:
    columns = spark_schema_of(parse_source_options(LIVE))
    kept = with_options_kept(spark_schema_of(parse_source_options(LIVE)), of_table({**LIVE, "topic": "u"}))
    read = parse_source_options(options_in_force({"minPartitions": "3"}, kept), streaming=False)
    assert (read.name_servers, read.topics, read.min_partitions) == ("127.0.0.1:10911", ("t",), 3)
    assert parse_sink_options(options_in_force({}, kept), streaming=False).topic == "u"
    elsewhere = {"nameServer": "b:2", "topic": "v"}
    assert parse_sink_options(options_in_force(elsewhere, kept), streaming=False).topic == "v"
    assert with_options_kept(spark_schema_of(parse_source_options(LIVE)), LIVE) == columns, "it is not a table"


def test_a_pattern_leaves_out_system_topics() -> None:
    given = {"nameServer": "a:1", "subscribePattern": ".*"}
    own = {"DefaultCluster", "broker-a"}
    system = {*SYSTEM_TOPICS, *own, "DefaultCluster_REPLY_TOPIC", "rmq_sys_reput_sink", "rmq_sys_REVIVE_LOG_X"}
    ours = {"orders", "%RETRY%g", "%DLQ%g", "orders_REPLY_TOPIC"}
    options = parse_source_options(given, streaming=True)
    assert {topic for topic in system | ours if options.is_wanted(topic, own)} == ours
    options = parse_source_options({**given, "includeSystemTopics": "true"}, streaming=True)
    assert {topic for topic in system | ours if options.is_wanted(topic, own)} == system | ours
    named = parse_source_options({"nameServer": "a:1", "subscribe": "rmq_sys_reput_sink"}, streaming=True)
    assert named.is_wanted("rmq_sys_reput_sink", own)
