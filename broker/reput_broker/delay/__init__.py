"""Messages for later: delay levels, timers, cancellations (RocketMQ: ScheduleMessageService, TimerMessageStore)."""
