"""The synchronous admin client."""

from __future__ import annotations

from reput_client import admin as asynchronous
from reput_client.blocking.client import BlockingClient, blocking, constructor


class Admin(BlockingClient[asynchronous.Admin]):
    """Manages the brokers of a cluster; a context manager.

    Arguments, results and errors are those of `reput_client.Admin`.
    """

    @constructor(asynchronous.Admin)
    def __init__(self, client: asynchronous.Admin) -> None:
        super().__init__(client)

    create_topic = blocking(asynchronous.Admin.create_topic)
    alter_topic = blocking(asynchronous.Admin.alter_topic)
    delete_topic = blocking(asynchronous.Admin.delete_topic)
    list_topics = blocking(asynchronous.Admin.list_topics)
    topic_config = blocking(asynchronous.Admin.topic_config)
    topic_configs = blocking(asynchronous.Admin.topic_configs)
    topic_stats = blocking(asynchronous.Admin.topic_stats)
    topic_summaries = blocking(asynchronous.Admin.topic_summaries)
    route = blocking(asynchronous.Admin.route)
    broker_status = blocking(asynchronous.Admin.broker_status)
    describe_broker = blocking(asynchronous.Admin.describe_broker)
    list_clients = blocking(asynchronous.Admin.list_clients)
    broker_config = blocking(asynchronous.Admin.broker_config)
    set_broker_config = blocking(asynchronous.Admin.set_broker_config)
    reload_broker_config = blocking(asynchronous.Admin.reload_broker_config)
    set_intake = blocking(asynchronous.Admin.set_intake)
    flush_log = blocking(asynchronous.Admin.flush_log)
    cluster_info = blocking(asynchronous.Admin.cluster_info)
    cluster_members = blocking(asynchronous.Admin.cluster_members)
    promote_broker = blocking(asynchronous.Admin.promote_broker)
    min_offset = blocking(asynchronous.Admin.min_offset)
    max_offset = blocking(asynchronous.Admin.max_offset)
    offset_by_time = blocking(asynchronous.Admin.offset_by_time)
    earliest_message_time_ms = blocking(asynchronous.Admin.earliest_message_time_ms)
    find_messages = blocking(asynchronous.Admin.find_messages)
    view_message = blocking(asynchronous.Admin.view_message)
    fetch_messages = blocking(asynchronous.Admin.fetch_messages)
    committed_offset = blocking(asynchronous.Admin.committed_offset)
    commit_offset = blocking(asynchronous.Admin.commit_offset)
    dead_letters = blocking(asynchronous.Admin.dead_letters)
    replay_progress = blocking(asynchronous.Admin.replay_progress)
    replay_dead_letter = blocking(asynchronous.Admin.replay_dead_letter)
    list_delayed = blocking(asynchronous.Admin.list_delayed)
    delayed_page = blocking(asynchronous.Admin.delayed_page)
    cancel_delayed = blocking(asynchronous.Admin.cancel_delayed)

    list_groups = blocking(asynchronous.Admin.list_groups)
    group_configs = blocking(asynchronous.Admin.group_configs)
    group_config = blocking(asynchronous.Admin.group_config)
    put_group = blocking(asynchronous.Admin.put_group)
    delete_group = blocking(asynchronous.Admin.delete_group)
    describe_group = blocking(asynchronous.Admin.describe_group)
    topic_groups = blocking(asynchronous.Admin.topic_groups)
    consume_stats = blocking(asynchronous.Admin.consume_stats)
    consume_time_span = blocking(asynchronous.Admin.consume_time_span)
    running_info = blocking(asynchronous.Admin.running_info)
    consume_directly = blocking(asynchronous.Admin.consume_directly)
    plan_reset = blocking(asynchronous.Admin.plan_reset)
    set_offsets = blocking(asynchronous.Admin.set_offsets)
    reset_offsets = blocking(asynchronous.Admin.reset_offsets)
    clone_offsets = blocking(asynchronous.Admin.clone_offsets)

    list_users = blocking(asynchronous.Admin.list_users)
    create_user = blocking(asynchronous.Admin.create_user)
    alter_user = blocking(asynchronous.Admin.alter_user)
    delete_user = blocking(asynchronous.Admin.delete_user)
    put_rules = blocking(asynchronous.Admin.put_rules)
    delete_rules = blocking(asynchronous.Admin.delete_rules)
