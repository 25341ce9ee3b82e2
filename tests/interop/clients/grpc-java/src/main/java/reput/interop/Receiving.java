package reput.interop;

import com.google.gson.JsonObject;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.FilterExpressionType;
import org.apache.rocketmq.client.apis.consumer.PushConsumer;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.java.message.MessageViewImpl;

/** Consumers by name. What the proxy knows of a group decides whether a push consumer consumes in order. */
final class Receiving {
    private static final Duration AWAIT = Duration.ofSeconds(5);
    private static final Duration INVISIBLE = Duration.ofSeconds(60);
    private static final Duration AGAIN_AFTER = Duration.ofSeconds(1);

    private final Connection connection;
    private final Map<String, AutoCloseable> consumers = new ConcurrentHashMap<>();

    Receiving(Connection connection) {
        this.connection = connection;
    }

    /** Starts the consumer of a request. */
    void consume(JsonObject request) throws Exception {
        Map<String, FilterExpression> topics = Map.of(request.get("topic").getAsString(), filter(request));
        Failures failures = new Failures(request);
        String name = request.get("consumer").getAsString();
        if (request.get("how").getAsString().equals("simple")) {
            consumers.put(name, simple(request, topics, failures, name));
        } else {
            PushConsumer consumer = connection.provider.newPushConsumerBuilder()
                .setClientConfiguration(connection.configuration)
                .setConsumerGroup(request.get("group").getAsString())
                .setSubscriptionExpressions(topics)
                .setMessageListener(message ->
                    handled(name, message, failures) ? ConsumeResult.SUCCESS : ConsumeResult.FAILURE)
                .build();
            consumers.put(name, consumer);
        }
    }

    /** Ends a consumer. */
    void stop(String name) throws Exception {
        consumers.remove(name).close();
    }

    private AutoCloseable simple(
        JsonObject request, Map<String, FilterExpression> topics, Failures failures, String name) throws Exception {
        SimpleConsumer consumer = connection.provider.newSimpleConsumerBuilder()
            .setClientConfiguration(connection.configuration)
            .setConsumerGroup(request.get("group").getAsString())
            .setAwaitDuration(AWAIT)
            .setSubscriptionExpressions(topics)
            .build();
        Duration invisible =
            request.has("invisibleMs") ? Duration.ofMillis(request.get("invisibleMs").getAsLong()) : INVISIBLE;
        Thread receives = new Thread(() -> {
            while (!Thread.currentThread().isInterrupted()) {
                try {
                    for (MessageView message : consumer.receive(16, invisible)) {
                        if (handled(name, message, failures)) {
                            consumer.ack(message);
                        } else {
                            consumer.changeInvisibleDuration(message, AGAIN_AFTER);
                        }
                    }
                } catch (Exception error) {
                    error.printStackTrace();
                }
            }
        });
        receives.setDaemon(true);
        receives.start();
        return () -> {
            receives.interrupt();
            consumer.close();
        };
    }

    private static FilterExpression filter(JsonObject request) {
        if (request.has("sql")) {
            return new FilterExpression(request.get("sql").getAsString(), FilterExpressionType.SQL92);
        }
        return new FilterExpression(
            request.has("tags") ? request.get("tags").getAsString() : "*", FilterExpressionType.TAG);
    }

    private static boolean handled(String consumer, MessageView message, Failures failures) {
        byte[] body = bytes(message.getBody());
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("topic", message.getTopic());
        // A gRPC client gets no place in a queue.
        line.put("queueId", -1);
        line.put("offset", -1);
        line.put("id", message.getMessageId().toString());
        line.put("body", Base64.getEncoder().encodeToString(body));
        line.put("tag", message.getTag().orElse(null));
        line.put("keys", String.join(" ", new TreeSet<>(message.getKeys())));
        line.put("properties", message.getProperties());
        line.put("times", message.getDeliveryAttempt() - 1);
        line.put("receipt", ((MessageViewImpl) message).getReceiptHandle());
        Main.say(Map.of("event", "received", "consumer", consumer, "message", line));
        return !failures.fails(body);
    }

    private static byte[] bytes(ByteBuffer buffer) {
        byte[] bytes = new byte[buffer.remaining()];
        buffer.duplicate().get(bytes);
        return bytes;
    }

    /** Fails the first deliveries of each message, as many as {@code fail} says. */
    private static final class Failures {
        private final int count;
        private final Map<String, Integer> seen = new ConcurrentHashMap<>();

        Failures(JsonObject request) {
            count = request.has("fail") ? request.get("fail").getAsInt() : 0;
        }

        boolean fails(byte[] body) {
            return count > 0 && seen.merge(new String(body, StandardCharsets.ISO_8859_1), 1, Integer::sum) <= count;
        }
    }
}
