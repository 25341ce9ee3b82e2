package reput.conformance;

import com.alibaba.fastjson2.JSONObject;
import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.netty.NettyClientConfig;
import org.apache.rocketmq.remoting.netty.NettyServerConfig;
import org.apache.rocketmq.remoting.protocol.RequestCode;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/** A whole broker in this process, and the official producer and consumer connected to it. */
final class BrokerFace implements Face {
    private static final int TIMEOUT_MS = 10_000;

    private final BrokerController controller;
    private final DefaultMQProducer producer;
    private final DefaultMQPullConsumer consumer;
    private final String brokerName;
    private final String address;

    BrokerFace(Settings settings) throws Exception {
        BrokerConfig brokerConfig = new BrokerConfig();
        brokerConfig.setWaitTimeMillsInSendQueue(10_000); // on a busy machine it would refuse what waits
        brokerConfig.setBrokerClusterName("DefaultCluster");
        brokerConfig.setBrokerName("broker-a");
        brokerConfig.setBrokerId(settings.brokerId);
        brokerConfig.setBrokerIP1("127.0.0.1");
        brokerConfig.setBrokerIP2("127.0.0.1");
        brokerName = brokerConfig.getBrokerName();
        NettyServerConfig serverConfig = new NettyServerConfig();
        serverConfig.setBindAddress("127.0.0.1");
        serverConfig.setListenPort(settings.port);
        controller = new BrokerController(brokerConfig, serverConfig, new NettyClientConfig(), settings.storeConfig());
        if (!controller.initialize()) {
            throw new IllegalStateException("the broker does not initialize on " + settings.dir);
        }
        address = "127.0.0.1:" + settings.port;
        // There is no name server: the broker answers for itself.
        controller.getRemotingServer().registerProcessor(RequestCode.GET_ROUTEINFO_BY_TOPIC,
            new OwnRoute(controller, address), controller.getAdminBrokerExecutor());
        controller.start();
        if (!settings.haMaster.isEmpty()) {
            // As a name server would tell it; a configured address is forgotten when the store starts.
            controller.getMessageStore().updateHaMasterAddress(settings.haMaster);
        }
        if (!settings.master.isEmpty()) {
            controller.getSlaveSynchronize().setMasterAddr(settings.master);
            controller.getSlaveSynchronize().syncAll();
            controller.getSlaveSynchronize().syncTimerCheckPoint();
        }
        StoreFace.awaitDispatch(controller.getMessageStore());

        producer = new DefaultMQProducer(settings.group + "-producer");
        producer.setNamesrvAddr(address);
        producer.start();
        consumer = new DefaultMQPullConsumer(settings.group);
        consumer.setNamesrvAddr(address);
        consumer.start();
    }

    private MessageQueue queue(JSONObject fields) {
        return new MessageQueue(fields.getString("topic"), brokerName, fields.getIntValue("queueId"));
    }

    @Override
    public void put(JSONObject request, Lines lines) throws Exception {
        List<JSONObject> parts = request.getList("messages", JSONObject.class);
        List<Message> messages = new ArrayList<>();
        for (JSONObject fields : parts) {
            Message message = new Message(fields.getString("topic"), StoreFace.body(fields));
            message.setFlag(fields.getIntValue("flag"));
            MessageAccessor.setProperties(message, StoreFace.properties(fields));
            messages.add(message);
        }
        if (request.getBooleanValue("batch")) {
            lines.add(result(producer.send(messages, queue(parts.get(0)), TIMEOUT_MS)));
        } else {
            for (int index = 0; index < messages.size(); index++) {
                lines.add(result(producer.send(messages.get(index), queue(parts.get(index)), TIMEOUT_MS)));
            }
        }
        StoreFace.awaitDispatch(controller.getMessageStore());
    }

    private static Map<String, Object> result(SendResult sent) {
        return Map.of("status", sent.getSendStatus().name(), "queueOffset", sent.getQueueOffset(),
            "messageId", sent.getOffsetMsgId(), "uniqueKey", sent.getMsgId());
    }

    @Override
    public void queues(Lines lines) throws Exception {
        for (String topic : controller.getTopicConfigManager().getTopicConfigTable().keySet()) {
            int queues = controller.getTopicConfigManager().selectTopicConfig(topic).getReadQueueNums();
            for (int queueId = 0; queueId < queues; queueId++) {
                long max = controller.getMessageStore().getMaxOffsetInQueue(topic, queueId);
                if (max > 0) {
                    MessageQueue queue = new MessageQueue(topic, brokerName, queueId);
                    lines.add(Map.of("topic", topic, "queueId", queueId,
                        "min", consumer.minOffset(queue), "max", consumer.maxOffset(queue)));
                }
            }
        }
    }

    @Override
    public void read(String topic, int queueId, Lines lines) throws Exception {
        MessageQueue queue = new MessageQueue(topic, brokerName, queueId);
        long offset = consumer.minOffset(queue);
        long max = consumer.maxOffset(queue);
        while (offset < max) {
            PullResult result = consumer.pull(queue, "*", offset, 32, TIMEOUT_MS);
            if (result.getPullStatus() != PullStatus.FOUND) {
                lines.add(Map.of("lost", offset, "status", result.getPullStatus().name()));
                if (result.getNextBeginOffset() <= offset) {
                    return;
                }
            } else {
                for (MessageExt message : result.getMsgFoundList()) {
                    lines.add(Messages.describe(message));
                }
            }
            offset = result.getNextBeginOffset();
        }
    }

    @Override
    public void byId(String topic, List<String> ids, Lines lines) throws Exception {
        for (String id : ids) {
            lines.add(Messages.describe(consumer.viewMessage(topic, id)));
        }
    }

    @Override
    public void byKey(JSONObject request, Lines lines) throws Exception {
        for (MessageExt message : consumer.queryMessage(request.getString("topic"), request.getString("key"),
            request.getIntValue("max"), request.getLongValue("begin"), request.getLongValue("end")).getMessageList()) {
            lines.add(Messages.describe(message));
        }
    }

    @Override
    public void byTime(JSONObject request, Lines lines) throws Exception {
        for (long time : request.getList("times", Long.class)) {
            lines.add(Map.of("offset", consumer.searchOffset(queue(request), time)));
        }
    }

    @Override
    public void committed(JSONObject request, Lines lines) throws Exception {
        lines.add(Map.of("offset", consumer.fetchConsumeOffset(queue(request), true)));
    }

    @Override
    public void commit(JSONObject request) throws Exception {
        consumer.getDefaultMQPullConsumerImpl().getOffsetStore()
            .updateConsumeOffsetToBroker(queue(request), request.getLongValue("offset"), false);
    }

    @Override
    public void admin(JSONObject request, Lines lines) {
        List<String> arguments = new ArrayList<>(request.getList("arguments", String.class));
        arguments.add("-n");
        arguments.add(address);
        ByteArrayOutputStream printed = new ByteArrayOutputStream();
        System.setOut(new PrintStream(printed, true, StandardCharsets.UTF_8));
        try {
            MQAdminStartup.main0(arguments.toArray(new String[0]), null);
        } finally {
            System.setOut(System.err);
        }
        lines.add(Map.of("printed", printed.toString(StandardCharsets.UTF_8)));
    }

    @Override
    public void close() {
        controller.shutdown();
    }
}
