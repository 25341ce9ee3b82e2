"""Delayed messages (RocketMQ: ScheduleMessageService, TimerMessageStore).

`feature` has the requests. `delay_redirects` redirects delayed messages, `delayed_record` decodes them, `deliverer`
puts them when due, `service` runs the tasks. Delay levels: `levels`, `level_counts`. Deliver times:
`timer_message_store` with its files `timer_wheel`, `timer_log` and `timer_checkpoint`, `timer_feed` and `active_slots`.
`state` recovers (`recovery`) and saves both; `waiting_messages` lists and `canceller` cancels.
"""
