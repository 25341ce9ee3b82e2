package reput.conformance;

import com.alibaba.fastjson2.JSON;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.RequestCallback;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * The official client asks, and replies, at a broker that is there already.
 *
 * <p>{@code Requests ADDRESS ASKED ANSWERED}: replies to every request in topic {@code ANSWERED} with its body behind
 * {@code "Java: "}. Each line of stdin is the body of a request to topic {@code ASKED}; what comes of it is one line of
 * stdout, an object with {@code body} or {@code error}. The first line says that both are ready; the end of stdin ends
 * it.
 */
public final class Requests {
    private static final int TIMEOUT_MS = 20_000;

    private Requests() {
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream lines = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        System.setOut(System.err);
        DefaultMQProducer producer = new DefaultMQProducer("java-producers");
        producer.setNamesrvAddr(arguments[0]);
        producer.start();

        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("java-workers");
        consumer.setNamesrvAddr(arguments[0]);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(arguments[2], "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                try {
                    byte[] body = ("Java: " + new String(message.getBody(), StandardCharsets.UTF_8))
                        .getBytes(StandardCharsets.UTF_8);
                    producer.send(MessageUtil.createReplyMessage(message, body), TIMEOUT_MS);
                } catch (Exception error) {
                    error.printStackTrace();
                    return ConsumeConcurrentlyStatus.RECONSUME_LATER;
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        lines.println(JSON.toJSONString(Map.of("body", "ready")));

        BufferedReader bodies = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String body = bodies.readLine(); body != null; body = bodies.readLine()) {
            lines.println(JSON.toJSONString(reply(producer, arguments[1], body)));
        }
        Runtime.getRuntime().halt(0);
    }

    private static Map<String, Object> reply(DefaultMQProducer producer, String topic, String body) {
        try {
            Message request = new Message(topic, body.getBytes(StandardCharsets.UTF_8));
            CompletableFuture<Message> reply = new CompletableFuture<>();
            // Of the ways to request, 5.3.3 waits for the reply only in those with a queue, or a selector, and a
            // callback; the others are done as soon as the broker has the request.
            producer.request(request, producer.fetchPublishMessageQueues(topic).get(0), new RequestCallback() {
                @Override
                public void onSuccess(Message message) {
                    reply.complete(message);
                }

                @Override
                public void onException(Throwable error) {
                    reply.completeExceptionally(error);
                }
            }, TIMEOUT_MS);
            return Map.of("body", new String(reply.get().getBody(), StandardCharsets.UTF_8));
        } catch (Exception error) {
            error.printStackTrace();
            return Map.of("error", error.toString());
        }
    }
}
