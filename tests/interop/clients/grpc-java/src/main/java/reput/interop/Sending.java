package reput.interop;

import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.SendReceipt;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;
import org.apache.rocketmq.client.java.impl.producer.SendReceiptImpl;

/** Sends messages; each topic has a producer of its own, which tells the proxy its topic when it starts. */
final class Sending {
    private final Connection connection;
    private final Map<String, Producer> producers = new HashMap<>();

    Sending(Connection connection) {
        this.connection = connection;
    }

    /** Sends the messages of a request as its {@code how} says, and returns the result of each. */
    List<Map<String, Object>> produce(JsonObject request) throws Exception {
        String topic = request.get("topic").getAsString();
        Producer producer = producer(topic);
        List<JsonObject> sent = new ArrayList<>();
        request.getAsJsonArray("messages").forEach(each -> sent.add(each.getAsJsonObject()));
        List<Map<String, Object>> results = new ArrayList<>();
        switch (request.get("how").getAsString()) {
            case "sync":
            case "orderly":
                for (JsonObject fields : sent) {
                    results.add(result(producer.send(message(topic, request, fields))));
                }
                break;
            case "async":
                List<CompletableFuture<SendReceipt>> receipts = new ArrayList<>();
                for (JsonObject fields : sent) {
                    receipts.add(producer.sendAsync(message(topic, request, fields)));
                }
                for (CompletableFuture<SendReceipt> receipt : receipts) {
                    results.add(result(receipt.get()));
                }
                break;
            case "transaction":
                for (JsonObject fields : sent) {
                    Transaction transaction = producer.beginTransaction();
                    producer.send(message(topic, request, fields), transaction);
                    decide(transaction, fields.getAsJsonObject("properties").get("decision").getAsString());
                }
                break;
            default:
                throw new IllegalArgumentException("unknown: " + request.get("how"));
        }
        return results;
    }

    /** Recalls a delayed message. */
    void recall(JsonObject request) throws Exception {
        String topic = request.get("topic").getAsString();
        producer(topic).recallMessage(topic, request.get("handle").getAsString());
    }

    private synchronized Producer producer(String topic) throws Exception {
        Producer found = producers.get(topic);
        if (found == null) {
            found = connection.provider.newProducerBuilder()
                .setClientConfiguration(connection.configuration)
                .setTopics(topic)
                .setTransactionChecker(message -> TransactionResolution.COMMIT)
                .build();
            producers.put(topic, found);
        }
        return found;
    }

    /** What is neither is left for the check. */
    private static void decide(Transaction transaction, String decision) throws Exception {
        if (decision.equals("commit")) {
            transaction.commit();
        } else if (decision.equals("rollback")) {
            transaction.rollback();
        }
    }

    private Message message(String topic, JsonObject request, JsonObject fields) {
        MessageBuilder builder = connection.provider.newMessageBuilder()
            .setTopic(topic)
            .setBody(Base64.getDecoder().decode(fields.get("body").getAsString()));
        if (!fields.get("tag").isJsonNull()) {
            builder.setTag(fields.get("tag").getAsString());
        }
        if (!fields.get("keys").isJsonNull()) {
            builder.setKeys(fields.get("keys").getAsString().split(" "));
        }
        for (Map.Entry<String, JsonElement> each : fields.getAsJsonObject("properties").entrySet()) {
            builder.addProperty(each.getKey(), each.getValue().getAsString());
        }
        if (request.has("key")) {
            builder.setMessageGroup(request.get("key").getAsString());
        }
        if (request.has("delayMs")) {
            builder.setDeliveryTimestamp(System.currentTimeMillis() + request.get("delayMs").getAsLong());
        }
        return builder.build();
    }

    private static Map<String, Object> result(SendReceipt receipt) {
        return Map.of(
            "id", receipt.getMessageId().toString(),
            "offset", ((SendReceiptImpl) receipt).getOffset(),
            "recallHandle", String.valueOf(receipt.getRecallHandle()));
    }
}
