package reput.conformance;

import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONArray;
import com.alibaba.fastjson2.JSONObject;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.consumer.AllocateMessageQueueStrategy;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragelyByCircle;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueByConfig;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueByMachineRoom;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueConsistentHash;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Shares queues out with Apache RocketMQ's strategies.
 *
 * <p>One case a line comes from stdin: {@code strategy}, {@code client}, {@code members}, {@code queues} as arrays of
 * topic, broker name and queue id, and {@code rooms}, {@code mine} or {@code nodes} where the strategy wants them. Each
 * is answered with one line, the client's queues.
 */
public final class Allocation {
    private Allocation() {
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream lines = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        System.setOut(System.err);
        BufferedReader cases = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = cases.readLine(); line != null; line = cases.readLine()) {
            JSONObject one = JSON.parseObject(line);
            List<MessageQueue> queues = queues(one.getJSONArray("queues"));
            List<String> members = one.getJSONArray("members").toList(String.class);
            // As RebalanceImpl does before it asks the strategy.
            Collections.sort(queues);
            Collections.sort(members);
            List<Object> answer = new ArrayList<>();
            for (MessageQueue queue : strategy(one).allocate("G", one.getString("client"), queues, members)) {
                answer.add(List.of(queue.getTopic(), queue.getBrokerName(), queue.getQueueId()));
            }
            lines.println(JSON.toJSONString(Map.of("queues", answer)));
        }
        System.exit(0);
    }

    private static AllocateMessageQueueStrategy strategy(JSONObject one) {
        switch (one.getString("strategy")) {
            case "averagely":
                return new AllocateMessageQueueAveragely();
            case "circularly":
                return new AllocateMessageQueueAveragelyByCircle();
            case "by_machine_room":
                AllocateMessageQueueByMachineRoom rooms = new AllocateMessageQueueByMachineRoom();
                rooms.setConsumeridcs(new HashSet<>(one.getJSONArray("rooms").toList(String.class)));
                return rooms;
            case "by_config":
                AllocateMessageQueueByConfig config = new AllocateMessageQueueByConfig();
                config.setMessageQueueList(queues(one.getJSONArray("mine")));
                return config;
            case "consistent_hash":
                return new AllocateMessageQueueConsistentHash(one.getIntValue("nodes"));
            default:
                throw new IllegalArgumentException(one.getString("strategy"));
        }
    }

    private static List<MessageQueue> queues(JSONArray rows) {
        List<MessageQueue> queues = new ArrayList<>();
        for (int i = 0; i < rows.size(); i++) {
            JSONArray row = rows.getJSONArray(i);
            queues.add(new MessageQueue(row.getString(0), row.getString(1), row.getIntValue(2)));
        }
        return queues;
    }
}
