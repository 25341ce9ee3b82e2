package reput.conformance;

import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONObject;
import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.namesrv.NamesrvConfig;
import org.apache.rocketmq.namesrv.NamesrvController;
import org.apache.rocketmq.remoting.netty.NettyClientConfig;
import org.apache.rocketmq.remoting.netty.NettyServerConfig;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/**
 * RocketMQ's part of a cluster: a name server, brokers, clients and tools, as far as each is asked for.
 *
 * <p>One request a line comes from stdin, as JSON with the verb under {@code do}; its answer is one line, an object
 * that has {@code error} if it failed. The process halts at the end of stdin.
 */
public final class Cluster {
    private static final int TIMEOUT_MS = 10_000;

    private final List<BrokerController> brokers = new ArrayList<>();
    private final List<Runnable> clients = new ArrayList<>();

    private Cluster() {
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream lines = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        System.setOut(System.err);
        Cluster cluster = new Cluster();
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            Map<String, Object> answer;
            try {
                answer = cluster.answer(JSON.parseObject(line));
            } catch (Exception error) {
                error.printStackTrace();
                answer = Map.of("error", error.toString());
            }
            lines.println(JSON.toJSONString(answer));
        }
        Runtime.getRuntime().halt(0);
    }

    private Map<String, Object> answer(JSONObject request) throws Exception {
        switch (request.getString("do")) {
            case "names":
                return startNames(request);
            case "broker":
                return startBroker(request);
            case "stop brokers":
                brokers.forEach(BrokerController::shutdown);
                return Map.of();
            case "admin":
                return admin(request.getList("arguments", String.class), request.getLongValue("limitMs"));
            case "clients":
                return startClients(request);
            case "stop clients":
                clients.forEach(Runnable::run);
                clients.clear();
                return Map.of();
            case "produce":
                return produce(request);
            case "consume":
                return consume(request);
            default:
                throw new IllegalArgumentException("unknown request " + request);
        }
    }

    private Map<String, Object> startNames(JSONObject request) throws Exception {
        NamesrvConfig config = new NamesrvConfig();
        config.setKvConfigPath(request.getString("dir") + "/kvConfig.json");
        config.setConfigStorePath(request.getString("dir") + "/namesrv.properties");
        NettyServerConfig serverConfig = new NettyServerConfig();
        serverConfig.setBindAddress("127.0.0.1");
        serverConfig.setListenPort(request.getIntValue("port"));
        NamesrvController names = new NamesrvController(config, serverConfig);
        if (!names.initialize()) {
            throw new IllegalStateException("the name server does not initialize");
        }
        names.start();
        return Map.of();
    }

    private Map<String, Object> startBroker(JSONObject request) throws Exception {
        BrokerConfig config = new BrokerConfig();
        config.setWaitTimeMillsInSendQueue(10_000); // on a busy machine it would refuse what waits
        config.setBrokerClusterName("DefaultCluster");
        config.setBrokerName(request.getString("name"));
        config.setBrokerIP1("127.0.0.1");
        config.setBrokerIP2("127.0.0.1");
        config.setNamesrvAddr(request.getString("names"));
        config.setCompressedRegister(request.getBooleanValue("compressed"));
        NettyServerConfig serverConfig = new NettyServerConfig();
        serverConfig.setBindAddress("127.0.0.1");
        serverConfig.setListenPort(request.getIntValue("port"));
        Settings settings = request.to(Settings.class);
        BrokerController broker =
            new BrokerController(config, serverConfig, new NettyClientConfig(), settings.storeConfig());
        if (!broker.initialize()) {
            throw new IllegalStateException("the broker does not initialize");
        }
        broker.start();
        brokers.add(broker);
        return Map.of();
    }

    /**
     * Runs a command of mqadmin; answers what it printed, and the messages of the exceptions that it printed.
     *
     * <p>Some commands repeat for ever; with a limit they are interrupted.
     */
    private static Map<String, Object> admin(List<String> arguments, long limitMs) throws InterruptedException {
        ByteArrayOutputStream printed = new ByteArrayOutputStream();
        ByteArrayOutputStream failed = new ByteArrayOutputStream();
        PrintStream errors = System.err;
        System.setOut(new PrintStream(printed, true, StandardCharsets.UTF_8));
        System.setErr(new PrintStream(failed, true, StandardCharsets.UTF_8));
        try {
            Thread command = new Thread(() -> MQAdminStartup.main0(arguments.toArray(new String[0]), null));
            command.start();
            long startedAt = System.nanoTime();
            while (command.isAlive()) {
                command.join(50);
                boolean isLate = limitMs > 0 && System.nanoTime() - startedAt > limitMs * 1_000_000;
                if (isLate || isClosing(command)) {
                    command.interrupt();
                }
            }
        } finally {
            System.setErr(errors);
            System.setOut(errors);
        }
        return Map.of("printed", printed.toString(StandardCharsets.UTF_8),
            "failed", failed.toString(StandardCharsets.UTF_8));
    }

    /** Whether a command waits for a thread of its client to notice that it ends, which takes up to three seconds. */
    private static boolean isClosing(Thread command) {
        StackTraceElement[] stack = command.getStackTrace();
        for (int depth = 1; depth < Math.min(stack.length, 5); depth++) {
            if (stack[depth].getClassName().endsWith(".ServiceThread")
                && stack[depth - 1].getMethodName().equals("join")) {
                return true;
            }
        }
        return false;
    }

    /** Starts a producer and a consumer, both with traces, that stay; the producer has sent one message. */
    private Map<String, Object> startClients(JSONObject request) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(request.getString("producers"), true, null);
        producer.setNamesrvAddr(request.getString("names"));
        producer.setVipChannelEnabled(request.getBooleanValue("vip"));
        producer.setHeartbeatBrokerInterval(1000);
        producer.start();
        clients.add(producer::shutdown);
        CountDownLatch consumed = new CountDownLatch(1);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(request.getString("consumers"), true, null);
        consumer.setNamesrvAddr(request.getString("names"));
        consumer.setHeartbeatBrokerInterval(1000);
        consumer.setPersistConsumerOffsetInterval(1000);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(request.getString("topic"), "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            consumed.countDown();
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        clients.add(consumer::shutdown);
        Message message = new Message(request.getString("topic"), "tag", "key", "body".getBytes(StandardCharsets.UTF_8));
        SendResult sent = producer.send(message, TIMEOUT_MS);
        if (!consumed.await(60, TimeUnit.SECONDS)) {
            throw new IllegalStateException("the consumer receives nothing");
        }
        return Map.of("clientId", consumer.getDefaultMQPushConsumerImpl().getmQClientFactory().getClientId(),
            "messageId", sent.getMsgId(), "offsetId", sent.getOffsetMsgId(),
            "queueId", sent.getMessageQueue().getQueueId(), "queueOffset", sent.getQueueOffset());
    }

    /** Sends {@code count} messages, round robin over all queues; answers how many each broker took. */
    private static Map<String, Object> produce(JSONObject request) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("java-producers");
        producer.setNamesrvAddr(request.getString("names"));
        producer.start();
        Map<String, Object> taken = new TreeMap<>();
        for (int number = 0; number < request.getIntValue("count"); number++) {
            byte[] body = ("java " + number).getBytes(StandardCharsets.UTF_8);
            Message message = new Message(request.getString("topic"), body);
            String broker = producer.send(message, TIMEOUT_MS).getMessageQueue().getBrokerName();
            taken.merge(broker, 1, (before, one) -> (Integer) before + (Integer) one);
        }
        producer.shutdown();
        return taken;
    }

    /** Consumes until {@code count} messages have come and no more do for a while; answers their bodies. */
    private static Map<String, Object> consume(JSONObject request) throws Exception {
        BlockingQueue<String> bodies = new LinkedBlockingQueue<>();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(request.getString("group"));
        consumer.setNamesrvAddr(request.getString("names"));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(request.getString("topic"), "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(message -> bodies.add(new String(message.getBody(), StandardCharsets.UTF_8)));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        List<String> consumed = new ArrayList<>();
        for (String body = ""; body != null;) {
            int seconds = consumed.size() < request.getIntValue("count") ? 60 : 3;
            body = bodies.poll(seconds, TimeUnit.SECONDS);
            if (body != null) {
                consumed.add(body);
            }
        }
        consumer.shutdown();
        return Map.of("bodies", consumed);
    }
}
