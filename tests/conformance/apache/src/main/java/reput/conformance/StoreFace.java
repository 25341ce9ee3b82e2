package reput.conformance;

import com.alibaba.fastjson2.JSONObject;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.common.BoundaryType;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExtBatch;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.store.AppendMessageResult;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.GetMessageStatus;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.QueryMessageResult;
import org.apache.rocketmq.store.SelectMappedBufferResult;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/** The store library alone: whole records, as they lie in the file. */
final class StoreFace implements Face {
    private final DefaultMessageStore store;
    private final InetSocketAddress storeHost;

    StoreFace(Settings settings) throws Exception {
        BrokerConfig brokerConfig = new BrokerConfig();
        store = new DefaultMessageStore(settings.storeConfig(), new BrokerStatsManager("conformance", false),
            (topic, queueId, logicOffset, tagsCode, storeTime, bitMap, properties) -> { },
            brokerConfig, new ConcurrentHashMap<>());
        storeHost = new InetSocketAddress(settings.storeIp, settings.port);
        if (!store.load()) {
            throw new IllegalStateException("the store does not load " + settings.dir);
        }
        store.start();
        awaitDispatch(store);
    }

    static void awaitDispatch(org.apache.rocketmq.store.MessageStore store) throws InterruptedException {
        while (store.dispatchBehindBytes() > 0) {
            Thread.sleep(1);
        }
    }

    @Override
    public void put(JSONObject request, Lines lines) throws Exception {
        List<JSONObject> messages = request.getList("messages", JSONObject.class);
        if (request.getBooleanValue("batch")) {
            lines.add(result(store.putMessages(batch(messages))));
        } else {
            for (JSONObject message : messages) {
                lines.add(result(store.putMessage(single(message))));
            }
        }
        awaitDispatch(store);
    }

    private MessageExtBrokerInner single(JSONObject fields) {
        MessageExtBrokerInner message = new MessageExtBrokerInner();
        fill(message, fields);
        message.setBody(body(fields));
        message.setSysFlag(fields.getIntValue("sysFlag"));
        Map<String, String> properties = properties(fields);
        MessageAccessor.setProperties(message, properties);
        message.setPropertiesString(MessageDecoder.messageProperties2String(properties));
        return message;
    }

    private MessageExtBatch batch(List<JSONObject> parts) {
        MessageExtBatch batch = new MessageExtBatch();
        fill(batch, parts.get(0));
        List<Message> messages = new ArrayList<>();
        for (JSONObject fields : parts) {
            Message message = new Message(batch.getTopic(), body(fields));
            message.setFlag(fields.getIntValue("flag"));
            MessageAccessor.setProperties(message, properties(fields));
            messages.add(message);
        }
        batch.setBody(MessageDecoder.encodeMessages(messages));
        return batch;
    }

    private void fill(MessageExtBrokerInner message, JSONObject fields) {
        message.setTopic(fields.getString("topic"));
        message.setQueueId(fields.getIntValue("queueId"));
        message.setFlag(fields.getIntValue("flag"));
        MessageAccessor.setProperties(message, new TreeMap<>());
        message.setBornTimestamp(System.currentTimeMillis());
        String bornHost = fields.getString("bornHost");
        message.setBornHost(new InetSocketAddress(bornHost == null ? "10.0.0.1" : bornHost, 40000));
        message.setStoreHost(storeHost);
        message.setReconsumeTimes(fields.getIntValue("reconsumeTimes"));
    }

    static byte[] body(JSONObject fields) {
        return Base64.getDecoder().decode(fields.getString("body"));
    }

    static Map<String, String> properties(JSONObject fields) {
        return fields.getJSONObject("properties").to(Messages.PROPERTIES);
    }

    private static Map<String, Object> result(PutMessageResult put) {
        AppendMessageResult append = put.getAppendMessageResult();
        if (append == null) {
            throw new IllegalStateException("the put was refused: " + put.getPutMessageStatus());
        }
        return Map.of("status", put.getPutMessageStatus().name(), "physicalOffset", append.getWroteOffset(),
            "queueOffset", append.getLogicsOffset(), "storeTimestamp", append.getStoreTimestamp(),
            "messageId", append.getMsgId(), "count", append.getMsgNum());
    }

    @Override
    public void queues(Lines lines) {
        store.getConsumeQueueTable().forEach((topic, queues) -> queues.forEach((queueId, queue) ->
            lines.add(Map.of("topic", topic, "queueId", queueId,
                "min", queue.getMinOffsetInQueue(), "max", queue.getMaxOffsetInQueue()))));
    }

    @Override
    public void read(String topic, int queueId, Lines lines) throws Exception {
        long offset = store.getMinOffsetInQueue(topic, queueId);
        long max = store.getMaxOffsetInQueue(topic, queueId);
        while (offset < max) {
            GetMessageResult result = store.getMessage("conformance", topic, queueId, offset, 32, null);
            try {
                for (int index = 0; index < result.getMessageBufferList().size(); index++) {
                    lines.add(record(result.getMessageBufferList().get(index),
                        result.getMessageQueueOffset().get(index)));
                }
            } finally {
                result.release();
            }
            if (result.getNextBeginOffset() <= offset) {
                throw new IllegalStateException("stuck at " + topic + " " + queueId + " " + offset + ": "
                    + result.getStatus());
            }
            if (result.getStatus() != GetMessageStatus.FOUND) {
                lines.add(Map.of("lost", offset, "status", result.getStatus().name()));
            }
            offset = result.getNextBeginOffset();
        }
    }

    private static Map<String, Object> record(ByteBuffer buffer, long queueOffset) {
        byte[] bytes = new byte[buffer.remaining()];
        buffer.get(bytes);
        return Map.of("queueOffset", queueOffset, "record", Base64.getEncoder().encodeToString(bytes));
    }

    @Override
    public void byId(String topic, List<String> ids, Lines lines) {
        for (String id : ids) {
            SelectMappedBufferResult found = store.selectOneMessageByOffset(Long.parseLong(id));
            if (found == null) {
                lines.add(Map.of("missing", id));
                continue;
            }
            try {
                lines.add(record(found.getByteBuffer(), -1));
            } finally {
                found.release();
            }
        }
    }

    @Override
    public void byKey(JSONObject request, Lines lines) {
        QueryMessageResult result = store.queryMessage(request.getString("topic"), request.getString("key"),
            request.getIntValue("max"), request.getLongValue("begin"), request.getLongValue("end"));
        try {
            for (ByteBuffer buffer : result.getMessageBufferList()) {
                lines.add(record(buffer, -1));
            }
        } finally {
            result.release();
        }
    }

    @Override
    public void byTime(JSONObject request, Lines lines) {
        BoundaryType boundary = BoundaryType.getType(request.getString("boundary"));
        for (long time : request.getList("times", Long.class)) {
            lines.add(Map.of("offset", store.getOffsetInQueueByTime(
                request.getString("topic"), request.getIntValue("queueId"), time, boundary)));
        }
    }

    @Override
    public void committed(JSONObject request, Lines lines) {
        throw new UnsupportedOperationException("the store keeps no offsets of groups");
    }

    @Override
    public void commit(JSONObject request) {
        throw new UnsupportedOperationException("the store keeps no offsets of groups");
    }

    @Override
    public void admin(JSONObject request, Lines lines) {
        throw new UnsupportedOperationException("there is no broker to administer");
    }

    @Override
    public void close() {
        store.shutdown();
    }
}
