package orders;

import java.nio.charset.StandardCharsets;
import java.util.concurrent.CountDownLatch;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Sends orders, or receives them: {@code Orders produce|consume ADDRESS COUNT}. The address is the broker's. */
public final class Orders {
    private Orders() {
    }

    public static void main(String[] arguments) throws Exception {
        int count = Integer.parseInt(arguments[2]);
        try {
            if (arguments[0].equals("produce")) {
                produce(arguments[1], count);
            } else {
                consume(arguments[1], count);
            }
        } catch (Exception error) {
            // The client's threads would keep the process.
            error.printStackTrace();
            System.exit(1);
        }
        System.exit(0);
    }

    private static void produce(String address, int count) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("java-shop");
        producer.setNamesrvAddr(address);
        producer.setSendMsgTimeout(30_000);
        producer.start();
        for (int number = 0; number < count; number++) {
            byte[] body = ("order " + number).getBytes(StandardCharsets.UTF_8);
            SendResult sent = producer.send(new Message("orders", "paid", "o-" + number, body));
            System.out.println("Java sent order " + number + " as " + sent.getMsgId());
        }
        producer.shutdown();
    }

    private static void consume(String address, int count) throws Exception {
        CountDownLatch missing = new CountDownLatch(count);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("java-billing");
        consumer.setNamesrvAddr(address);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe("orders", "paid");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                String body = new String(message.getBody(), StandardCharsets.UTF_8);
                System.out.println("Java received " + body + ", " + message.getMsgId());
                missing.countDown();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        missing.await();
        consumer.shutdown();
    }
}
