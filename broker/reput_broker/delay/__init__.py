"""Delayed messages (RocketMQ: ScheduleMessageService, TimerMessageStore).

`feature` has the requests and runs the tasks. `delayed_record` redirects delayed messages and decodes
them, `deliverer` feeds the timer and puts what is due. Delay levels: `levels`. Deliver times: `timer_message_store`
with its files `timer_wheel`, `timer_log` and `timer_checkpoint`, and `active_slots`. `state` recovers and saves both;
`waiting_messages` lists and cancels.
"""
