package reput.conformance;

import com.alibaba.fastjson2.TypeReference;
import java.util.Base64;
import java.util.Map;
import java.util.TreeMap;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageExt;

/** Messages as the client sees them, for comparison. */
final class Messages {
    static final TypeReference<Map<String, String>> PROPERTIES = new TypeReference<>() { };

    private Messages() {
    }

    static Map<String, Object> describe(MessageExt message) {
        Map<String, String> properties = new TreeMap<>(message.getProperties());
        // What a consumer adds to what it pulled.
        properties.remove(MessageConst.PROPERTY_MIN_OFFSET);
        properties.remove(MessageConst.PROPERTY_MAX_OFFSET);
        Map<String, Object> line = new TreeMap<>();
        line.put("topic", message.getTopic());
        line.put("queueId", message.getQueueId());
        line.put("queueOffset", message.getQueueOffset());
        line.put("physicalOffset", message.getCommitLogOffset());
        line.put("body", Base64.getEncoder().encodeToString(message.getBody() == null ? new byte[0] : message.getBody()));
        line.put("properties", properties);
        line.put("flag", message.getFlag());
        line.put("bornTimestamp", message.getBornTimestamp());
        line.put("storeTimestamp", message.getStoreTimestamp());
        line.put("bornHost", message.getBornHost().toString());
        line.put("storeHost", message.getStoreHost().toString());
        line.put("reconsumeTimes", message.getReconsumeTimes());
        return line;
    }
}
