package reput.interop;

import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.RequestCallback;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.selector.SelectMessageQueueByHash;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.RPCHook;

/** Sends messages in every way that the client offers. */
final class Sending {
    static final int TIMEOUT_MS = 60_000;

    private final String address;
    private DefaultMQProducer producer;
    private TransactionMQProducer transactions;

    Sending(String address) {
        this.address = address;
    }

    /** Sends the messages of a request as its {@code how} says, and returns the result of each. */
    List<Map<String, Object>> produce(Request request) throws Exception {
        List<Message> messages = new ArrayList<>();
        for (Request each : request.list("messages")) {
            messages.add(message(request, each));
        }
        List<Map<String, Object>> results = new ArrayList<>();
        switch (request.text("how")) {
            case "sync":
                for (Message message : messages) {
                    results.add(result(producer().send(message, TIMEOUT_MS)));
                }
                break;
            case "async":
                List<CompletableFuture<SendResult>> sent = new ArrayList<>();
                for (Message message : messages) {
                    sent.add(async(message));
                }
                for (CompletableFuture<SendResult> each : sent) {
                    results.add(result(each.get()));
                }
                break;
            case "one-way":
                for (Message message : messages) {
                    producer().sendOneway(message);
                }
                break;
            case "batch":
                results.add(result(producer().send(messages, TIMEOUT_MS)));
                break;
            case "orderly":
                for (Message message : messages) {
                    results.add(result(producer().send(
                        message, new SelectMessageQueueByHash(), request.text("key"), TIMEOUT_MS)));
                }
                break;
            case "transaction":
                for (Message message : messages) {
                    results.add(result(transactions().sendMessageInTransaction(message, null)));
                }
                break;
            default:
                throw new IllegalArgumentException("unknown: " + request.text("how"));
        }
        return results;
    }

    /** Sends a request and returns the body of its reply. */
    String request(Request request) throws Exception {
        Message message = new Message(request.text("topic"), Base64.getDecoder().decode(request.text("body")));
        CompletableFuture<Message> reply = new CompletableFuture<>();
        // Of the ways to request, some versions wait for the reply only in those with a queue and a callback.
        producer().request(
            message,
            producer().fetchPublishMessageQueues(request.text("topic")).get(0),
            new RequestCallback() {
                @Override
                public void onSuccess(Message answer) {
                    reply.complete(answer);
                }

                @Override
                public void onException(Throwable error) {
                    reply.completeExceptionally(error);
                }
            },
            TIMEOUT_MS);
        return Base64.getEncoder().encodeToString(reply.get(2L * TIMEOUT_MS, TimeUnit.MILLISECONDS).getBody());
    }

    /** The producer of everything but transactions; started on first use. */
    synchronized DefaultMQProducer producer() throws Exception {
        if (producer == null) {
            producer = new DefaultMQProducer("interop-java", signing());
            producer.setNamesrvAddr(address);
            producer.setInstanceName("interop");
            producer.setSendMsgTimeout(TIMEOUT_MS);
            producer.setMqClientApiTimeout(TIMEOUT_MS);
            producer.start();
        }
        return producer;
    }

    /** What signs requests as {@code INTEROP_USER}, or null. */
    static RPCHook signing() {
        String user = System.getenv("INTEROP_USER");
        return user == null
            ? null : new AclClientRPCHook(new SessionCredentials(user, System.getenv("INTEROP_SECRET")));
    }

    private synchronized TransactionMQProducer transactions() throws Exception {
        if (transactions == null) {
            transactions = new TransactionMQProducer("interop-java-transactions", signing());
            transactions.setNamesrvAddr(address);
            transactions.setInstanceName("transactions");
            transactions.setSendMsgTimeout(TIMEOUT_MS);
            transactions.setMqClientApiTimeout(TIMEOUT_MS);
            transactions.setTransactionListener(new Decisions());
            transactions.start();
        }
        return transactions;
    }

    private CompletableFuture<SendResult> async(Message message) throws Exception {
        CompletableFuture<SendResult> result = new CompletableFuture<>();
        producer().send(message, new SendCallback() {
            @Override
            public void onSuccess(SendResult sent) {
                result.complete(sent);
            }

            @Override
            public void onException(Throwable error) {
                result.completeExceptionally(error);
            }
        }, TIMEOUT_MS);
        return result;
    }

    private static Message message(Request request, Request fields) throws Exception {
        Message message = new Message(request.text("topic"), Base64.getDecoder().decode(fields.text("body")));
        if (fields.has("tag")) {
            message.setTags(fields.text("tag"));
        }
        if (fields.has("keys")) {
            message.setKeys(fields.text("keys"));
        }
        fields.texts("properties").forEach(message::putUserProperty);
        if (request.has("delayLevel")) {
            message.setDelayTimeLevel(request.number("delayLevel"));
        }
        if (request.has("delayMs")) {
            // Only version 5 has it.
            Message.class.getMethod("setDelayTimeMs", long.class).invoke(message, (long) request.number("delayMs"));
        }
        return message;
    }

    private static Map<String, Object> result(SendResult sent) {
        if (!"SEND_OK".equals(sent.getSendStatus().name())) {
            throw new IllegalStateException(sent.toString());
        }
        return Map.of(
            "id", sent.getMsgId(),
            "queueId", sent.getMessageQueue().getQueueId(),
            "offset", sent.getQueueOffset());
    }

    /** Decides as the message's property {@code decision} says; what is unknown is committed when the broker asks. */
    private static final class Decisions implements TransactionListener {
        @Override
        public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
            switch (message.getUserProperty("decision")) {
                case "commit":
                    return LocalTransactionState.COMMIT_MESSAGE;
                case "rollback":
                    return LocalTransactionState.ROLLBACK_MESSAGE;
                default:
                    return LocalTransactionState.UNKNOW;
            }
        }

        @Override
        public LocalTransactionState checkLocalTransaction(MessageExt message) {
            return LocalTransactionState.COMMIT_MESSAGE;
        }
    }
}
