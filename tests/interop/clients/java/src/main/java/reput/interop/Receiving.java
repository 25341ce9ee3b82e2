package reput.interop;

import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/** Consumers by name, each with a group, a topic and a way to consume. */
final class Receiving {
    private final String address;
    private final Sending sending;
    private final Map<String, Runnable> stops = new ConcurrentHashMap<>();

    Receiving(String address, Sending sending) {
        this.address = address;
        this.sending = sending;
    }

    /** Starts the consumer of a request. */
    void consume(Request request) throws Exception {
        stops.put(request.text("consumer"), request.text("how").equals("lite") ? lite(request) : push(request));
    }

    /** Ends a consumer. */
    void stop(String name) {
        stops.remove(name).run();
    }

    private Runnable push(Request request) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(
            request.text("group"), Sending.signing(), new AllocateMessageQueueAveragely());
        consumer.setNamesrvAddr(address);
        consumer.setInstanceName(request.text("consumer"));
        consumer.setMqClientApiTimeout(Sending.TIMEOUT_MS);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        if (request.has("maxTimes")) {
            consumer.setMaxReconsumeTimes(request.number("maxTimes"));
        }
        if (request.has("sql")) {
            consumer.subscribe(request.text("topic"), MessageSelector.bySql(request.text("sql")));
        } else {
            consumer.subscribe(request.text("topic"), request.has("tags") ? request.text("tags") : "*");
        }
        if (request.text("how").equals("broadcasting")) {
            broadcast(consumer);
        }
        if (request.text("how").equals("pop")) {
            // Only version 5 has it.
            DefaultMQPushConsumer.class.getMethod("setClientRebalance", boolean.class).invoke(consumer, false);
        }
        Failures failures = new Failures(request);
        if (request.text("how").equals("orderly")) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                context.setSuspendCurrentQueueTimeMillis(100);
                return handle(messages, request, failures)
                    ? ConsumeOrderlyStatus.SUCCESS : ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
            });
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                context.setDelayLevelWhenNextConsume(1);
                return handle(messages, request, failures)
                    ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS : ConsumeConcurrentlyStatus.RECONSUME_LATER;
            });
        }
        consumer.start();
        return consumer::shutdown;
    }

    private Runnable lite(Request request) throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(request.text("group"), Sending.signing());
        consumer.setNamesrvAddr(address);
        consumer.setInstanceName(request.text("consumer"));
        consumer.setMqClientApiTimeout(Sending.TIMEOUT_MS);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(request.text("topic"), request.has("tags") ? request.text("tags") : "*");
        consumer.start();
        AtomicBoolean stops = new AtomicBoolean();
        Thread polls = new Thread(() -> {
            while (!stops.get()) {
                handle(consumer.poll(500), request, new Failures(request));
            }
            consumer.shutdown();
        });
        polls.setDaemon(true);
        polls.start();
        return () -> stops.set(true);
    }

    private boolean handle(List<MessageExt> messages, Request request, Failures failures) {
        boolean handled = true;
        for (MessageExt message : messages) {
            Main.say(Map.of("event", "received", "consumer", request.text("consumer"), "message", described(message)));
            if (request.flag("reply")) {
                reply(message);
            }
            handled &= !failures.fails(message);
        }
        return handled;
    }

    private void reply(MessageExt message) {
        try {
            byte[] body = ("reply to " + new String(message.getBody(), StandardCharsets.UTF_8))
                .getBytes(StandardCharsets.UTF_8);
            sending.producer().send(MessageUtil.createReplyMessage(message, body));
        } catch (Exception error) {
            error.printStackTrace();
        }
    }

    private static Map<String, Object> described(MessageExt message) {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("topic", message.getTopic());
        line.put("queueId", message.getQueueId());
        line.put("offset", message.getQueueOffset());
        line.put("id", message.getMsgId());
        line.put("body", Base64.getEncoder().encodeToString(message.getBody()));
        line.put("tag", message.getTags());
        line.put("keys", message.getKeys());
        line.put("properties", message.getProperties());
        line.put("times", message.getReconsumeTimes());
        return line;
    }

    /** The enumeration of models is in another package in 4.9 than in 5. */
    private static void broadcast(DefaultMQPushConsumer consumer) throws ReflectiveOperationException {
        Class<?> model = consumer.getMessageModel().getClass();
        Method setter = DefaultMQPushConsumer.class.getMethod("setMessageModel", model);
        setter.invoke(consumer, model.getField("BROADCASTING").get(null));
    }

    /** Fails the first deliveries of each message, as many as {@code fail} says. */
    private static final class Failures {
        private final int count;
        private final Map<String, Integer> seen = new ConcurrentHashMap<>();

        Failures(Request request) {
            count = request.number("fail");
        }

        boolean fails(MessageExt message) {
            String body = new String(message.getBody(), StandardCharsets.ISO_8859_1);
            return count > 0 && seen.merge(body, 1, Integer::sum) <= count;
        }
    }
}
